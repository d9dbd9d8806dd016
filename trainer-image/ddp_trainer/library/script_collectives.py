"""What becomes of a script's own collectives when a rank is lost: no script sees them fail.

Within a step they fail unseen: the step is not taken, and its batches come again. Outside of the
training loop they wait until the group has formed again, and are done again. Their results are
kept, so that a rank that takes a lost one's place and runs the script from its top gets those that
the others have had. Between a step and the next batch such a rank is not there: a collective that
fails there gives each rank its own values, and so do those after it up to the next batch.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.futures import Future

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.script_collective import Collective
from ddp_trainer.collectives.script_group import Ended, ScriptGroup
from ddp_trainer.process_group.failures import is_lost_device, is_lost_peer

Kind = Literal["start", "epoch", "step", "after a step", "after an epoch", "end"]
Place = tuple[Kind, int]
"""Where a script is, and at which step or epoch."""
Results = list[Tensor] | None
"""Of a collective; None: not the same on all members."""

_PASSED_AGAIN = ("start", "epoch")
"""Where a rank that takes a lost one's place passes, though the others are further."""

_logger = logging.getLogger(__name__)


class ScriptCollectives:
    """Those of one rank's script, on torch's default group and on those made with `new_group`."""

    def __init__(self, form: Callable[[Exception], None], *, settle: Callable[[], None]) -> None:
        """`form` forms the job's group again after an error; it calls `leave` and `enter`.

        `settle` does what is due after the step before, in case a script has left its loop early.
        """
        self._form = form
        self._settle = settle
        self._world = ScriptGroup("", None, self._carry_out, self._make_group)
        self._smaller: dict[str, ScriptGroup] = {}
        self._group: Group | None = None
        self._place: Place = ("start", 0)
        self._left: set[Place] = set()
        """Places that some rank has left, and that a new one has yet to pass."""
        self._results: dict[tuple[Place, str], list[Results]] = {}
        """By place and group."""
        self._asked: Counter[str] = Counter()
        """How many collectives the script has called at its place, by group."""
        self._is_alone = False
        self._thread = threading.get_ident()

    # Where the script is.

    @property
    def place(self) -> Place:
        """Where the script is."""
        return self._place

    def come_to(self, kind: Kind, number: int = 0) -> None:
        """The script is at another place."""
        if self._place[0] in _PASSED_AGAIN:
            self._left.add(self._place)
        self._place = kind, number
        self._asked.clear()
        self._is_alone = False

    def stepped(self, *, epoch: int) -> None:
        """A step is taken: forget what no rank will ask for again."""
        kept: set[Place] = {("start", 0), ("epoch", epoch)}
        self._left &= kept
        self._results = {key: given for key, given in self._results.items() if key[0] in kept}

    # The job's groups.

    def enter(self, group: Group) -> None:
        """Use a group that has formed, from here on the script's default; a collective."""
        self._share_results(group)
        self._group = group
        world = group.world
        self._world.enter(world)
        for smaller in self._smaller.values():
            self._enter(smaller)
        distributed_c10d._update_default_pg(self._world)

    def leave(self) -> None:
        """Let go of the group, before the job leaves it."""
        group, self._group = self._group, None
        if group is None:
            return
        self._is_alone = self._is_alone or self._place[0] == "after a step"
        for each in (self._world, *self._smaller.values()):
            each.leave()
        if dist.is_initialized():
            distributed_c10d._update_default_pg(group.world)

    def _enter(self, smaller: ScriptGroup) -> None:
        group, ranks = self._group, smaller.ranks
        assert group is not None
        assert ranks is not None
        smaller.enter(group.world, partial(group.form_smaller, ranks, smaller.label))

    def _make_group(self, ranks: tuple[int, ...]) -> ScriptGroup:
        alike = sum(smaller.ranks == ranks for smaller in self._smaller.values())
        label = f"{','.join(map(str, ranks))}/{alike}"
        smaller = self._smaller[label] = ScriptGroup(label, ranks, self._carry_out)
        self._enter(smaller)
        return smaller

    def _share_results(self, group: Group) -> None:
        """Have the results that any rank has, and know which places some rank has left."""
        own = {key: len(given) for key, given in self._results.items()}
        message = [[*place, name, count] for (place, name), count in own.items()]
        told = [
            json.loads(each) for each in group.gather(json.dumps([message, [*self._left]]).encode())
        ]
        self._left.update((kind, number) for _, left in told for kind, number in left)
        counts = [
            {((kind, number), name): count for kind, number, name, count in counts}
            for counts, _ in told
        ]
        for key in sorted({key for each in counts for key in each}):
            known = [each.get(key, 0) for each in counts]
            least, most = min(known), max(known)
            if least == most:
                continue
            source, given = known.index(most), self._results.get(key, [])
            packed = _pack(given[least:]) if group.rank == source else None
            missing = _unpack(group.broadcast(packed, source=source))
            self._results[key] = given + missing[len(given) - least :]

    # Collectives.

    def _carry_out(self, group: ScriptGroup, collective: Collective) -> dist.Work:
        is_elsewhere = threading.get_ident() != self._thread  # such as where gradients are computed
        if self._place[0] == "step" or collective.is_message or is_elsewhere:
            return self._begin(group, collective)
        if self._place[0] == "after a step":
            self._do_once(group, collective)
        else:
            self._do(group, collective)
        return Ended(collective.outputs)

    def _begin(self, group: ScriptGroup, collective: Collective) -> dist.Work:
        """Begin it; where the group breaks, the step finds that out."""
        formed, keep_own = self._formed, partial(_keep_own, group, collective)
        if not (self._is_alone or formed.is_broken):
            try:
                return _Begun(collective.begin(group.formed), formed, collective, keep_own)
            except Exception as error:
                if not _is_excused(error, formed):
                    raise
        keep_own()
        return Ended(collective.outputs)

    def _do_once(self, group: ScriptGroup, collective: Collective) -> None:
        """Do it if that is possible; where the group breaks, the next step finds that out."""
        formed = self._formed
        if not (self._is_alone or formed.is_broken):
            try:
                self._try(group, collective)
            except Exception as error:
                if not _is_excused(error, formed):
                    raise
            else:
                return
        _logger.warning(
            "a rank was lost: the script's %s after a step gives this rank's own values",
            collective.name,
        )
        _keep_own(group, collective)

    def _do(self, group: ScriptGroup, collective: Collective) -> None:
        """Do it until it is done, or get its results from another rank."""
        self._settle()
        key, number = (self._place, group.label), self._asked[group.label]
        self._asked[group.label] += 1
        while number >= len(given := self._results.setdefault(key, [])):
            if self._place in self._left:
                _logger.warning(
                    "the script calls %s, which the other ranks have not called at this place: it "
                    "gives this rank's own values. Call the same collectives on all ranks, and "
                    "each time the script is run",
                    collective.name,
                )
                _keep_own(group, collective)
                return
            try:
                results = self._try(group, collective)
            except Exception as error:
                if not _is_excused(error, self._formed):
                    raise
                self._form(error)
            else:
                given.append([each.cpu() for each in results] if collective.is_shared else None)
                return
        known = given[number]
        if known is None:
            _keep_own(group, collective)
        else:
            collective.deliver(known, rank=group.rank())

    def _try(self, group: ScriptGroup, collective: Collective) -> list[Tensor]:
        """Do it, and give the script its results; nothing of it where the group breaks."""
        rank = group.rank()
        work, results = collective.begin_apart(group.formed, rank=rank, size=group.size())
        self._formed.wait(work, results)
        self._formed.gate.wait()
        collective.deliver(results, rank=rank)
        return results

    @property
    def _formed(self) -> Group:
        assert self._group is not None, "the job is not formed"
        return self._group


def _keep_own(group: ScriptGroup, collective: Collective) -> None:
    collective.keep_own(rank=group.rank(), size=group.size())


class _Begun(dist.Work):
    """A collective within a step, whose end is that of the step if the group breaks."""

    def __init__(
        self,
        work: dist.Work,
        group: Group,
        collective: Collective,
        keep_own: Callable[[], None],
    ) -> None:
        super().__init__()
        self._work = work
        self._group = group
        self._collective = collective
        self._keep_own = keep_own

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it has ended, or the group is broken."""
        del timeout
        try:
            self._group.wait(self._work, self._collective.outputs)
        except Exception as error:
            if not _is_excused(error, self._group):
                raise
            self._keep_own()
        return True

    def synchronize(self) -> None:
        """Wait as `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it has ended, or the group is broken."""
        return self._group.is_broken or self._work.is_completed()

    def result(self) -> list[Tensor]:
        """Return what it has written."""
        return self._collective.outputs

    def get_future(self) -> Future[Any]:
        """Return a future of what it writes, complete at the latest when the group is broken."""
        return self._group.future_of(self._work, self._collective.outputs)


def _is_excused(error: Exception, group: Group) -> bool:
    """Whether it is the group that failed: then the gate says so before the step is taken."""
    if is_lost_device(error) or not (is_lost_peer(error) or group.is_broken):
        return False
    group.fail(error)
    return True


def _pack(results: list[Results]) -> bytes:
    file = io.BytesIO()
    torch.save(results, file)
    return file.getvalue()


def _unpack(message: bytes) -> list[Results]:
    found: list[Results] = torch.load(io.BytesIO(message), weights_only=True)
    return found
