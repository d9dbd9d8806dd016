"""Runs a script's own collectives so that the script never sees them fail when a rank is lost.

Within a step, the step is not taken if they fail, and its batches come again. Outside the training
loop, they wait until the group has formed again and are repeated. Their results are kept: a rank
that replaces a lost one runs the script from its top and receives the results that the others had.
Between a step and the next batch, such a rank is not there. If a collective fails there, it gives
each rank its own values, and so do all further ones until the next batch.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal, NoReturn

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.script_collective import Collective
from ddp_trainer.collectives.script_group import Ended, ScriptGroup
from ddp_trainer.collectives.script_work import ScriptWork
from ddp_trainer.library.sharded.device_mesh import groups_of_meshes
from ddp_trainer.process_group.failures import is_lost_device, is_lost_peer

Kind = Literal["start", "epoch", "step", "after a step", "after an epoch", "end"]
Place = tuple[Kind, int]
"""The place of a script, and its step or epoch."""
Results = list[Tensor] | None
"""Results of a collective; None: not the same on all members."""

_PASSED_AGAIN = ("start", "epoch")
"""Places that a replacement of a lost rank passes although the others are further."""

_logger = logging.getLogger(__name__)


class ScriptCollectives:
    """The collectives of a rank's script, on torch's default group and those of `new_group`."""

    def __init__(self, form: Callable[[Exception], None], *, settle: Callable[[], None]) -> None:
        """`form` forms the job's group again after an error; it calls `leave` and `enter`.

        `settle` completes the previous step, in case the script has left its loop early.
        """
        self._form = form
        self._settle = settle
        self._world, *smaller = groups_of_meshes() or [ScriptGroup("", None)]
        self._smaller = {each.label: each for each in smaller}
        for each in (self._world, *smaller):
            each.serve(self._carry_out, self._make_group)
        self._group: Group | None = None
        self.place: Place = ("start", 0)
        """The place of the script; the loop over batches sets it, if it leads from step to step."""
        self.only_steps = False
        """True: the script has taken steps alone since the group formed, and nothing is kept."""
        self._left: set[Place] = set()
        """Places that a rank has left and that a new rank still has to pass."""
        self._results: dict[tuple[Place, str], list[Results]] = {}
        """Results by place and group."""
        self._asked: Counter[str] = Counter()
        """Number of collectives that the script has called at its place, by group."""
        self._is_alone = False
        self._thread = threading.get_ident()
        self._incomplete: set[object] = set()
        """Stands for collectives since the last update began whose results are not known."""
        self.omits: Callable[[ScriptGroup, Collective], bool] | None = None
        """Returns whether a collective is left out now: each member keeps its own values."""

    # The place of the script.

    def come_to(self, kind: Kind, number: int = 0) -> None:
        """Note that the script is at another place."""
        if self.place[0] in _PASSED_AGAIN:
            self._left.add(self.place)
        self.place = kind, number
        self.only_steps = False
        self._asked.clear()
        self._is_alone = False

    def stepped(self, step: int, *, epoch: int) -> None:
        """Note that a step was taken: forget results that no rank will need again."""
        self.come_to("after a step", step)
        kept: set[Place] = {("start", 0), ("epoch", epoch)}
        self._left &= kept
        if self._results:
            self._results = {key: given for key, given in self._results.items() if key[0] in kept}
        self.only_steps = True

    def begin_update(self) -> None:
        """Note that the optimizers' step begins, which may need collectives, too."""
        self._incomplete = set()

    @property
    def is_update_complete(self) -> bool:
        """Return whether each collective since `begin_update` is known to have its result."""
        return not self._incomplete

    # The job's groups.

    def enter(self, group: Group) -> None:
        """Make a group that has formed the script's default; a collective."""
        self._share_results(group)
        self._group = group
        world = group.world
        self._world.enter(world)
        for smaller in self._smaller.values():
            self._enter(smaller)
        distributed_c10d._update_default_pg(self._world)

    def leave(self) -> None:
        """Release the group, before the job leaves it."""
        group, self._group = self._group, None
        if group is None:
            return
        self._is_alone = self._is_alone or self.place[0] == "after a step"
        self.only_steps = False
        for each in (self._world, *self._smaller.values()):
            each.leave()
        if dist.is_initialized():
            distributed_c10d._update_default_pg(group.world)

    def end(self, rank: int, size: int) -> None:
        """Leave a default group that knows its place and that the script may destroy.

        Most scripts end with `destroy_process_group()`, which fails without a group.
        """
        if dist.is_initialized():  # the job was formed in a group of the process
            return
        self._world.serve(_refuse, _refuse)
        self._world.expect(rank, size)
        distributed_c10d._update_default_pg(self._world)

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
        """Exchange results, and the places that ranks have left, with all ranks."""
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
        if self.omits is not None and self.omits(group, collective):
            _keep_own(group, collective)
            return Ended(collective.outputs)
        # Another thread computes gradients, for example.
        is_elsewhere = threading.get_ident() != self._thread
        if self.place[0] == "step" or collective.is_message or is_elsewhere:
            return self._begin(group, collective)
        if self.place[0] == "after a step":
            self._do_once(group, collective)
        else:
            self._do(group, collective)
        return Ended(collective.outputs)

    def _begin(self, group: ScriptGroup, collective: Collective) -> dist.Work:
        """Begin a collective; if the group breaks, the step notices."""
        formed, keep_own = self._formed, partial(_keep_own, group, collective)
        incomplete, own = self._incomplete, object()
        incomplete.add(own)
        note = partial(incomplete.discard, own)
        if not (self._is_alone or formed.is_broken):
            try:
                work, excuses = collective.begin(group.formed), partial(_is_excused, group=formed)
                return ScriptWork(
                    work, formed, collective, keep_own, excuses=excuses, when_complete=note
                )
            except Exception as error:
                if not _is_excused(error, formed):
                    raise
        keep_own()
        return Ended(collective.outputs)

    def _do_once(self, group: ScriptGroup, collective: Collective) -> None:
        """Run a collective if possible; if the group breaks, the next step notices."""
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
            "a rank was lost: the script's %s after a step returns this rank's own values",
            collective.name,
        )
        _keep_own(group, collective)

    def _do(self, group: ScriptGroup, collective: Collective) -> None:
        """Run a collective until it succeeds, or take its results from another rank."""
        self._settle()
        key, number = (self.place, group.label), self._asked[group.label]
        self._asked[group.label] += 1
        while number >= len(given := self._results.setdefault(key, [])):
            if self.place in self._left:
                _logger.warning(
                    "the script calls %s, which the other ranks have not called at this place: it "
                    "returns this rank's own values. Call the same collectives on all ranks and "
                    "in each run of the script",
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
        """Run a collective and deliver its results; deliver nothing if the group breaks."""
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


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "the ranks have ended their training together, and no group is left: call collectives of "
        "torch.distributed within the `with ddp_trainer.join(...)` block"
    )


def _keep_own(group: ScriptGroup, collective: Collective) -> None:
    collective.keep_own(rank=group.rank(), size=group.size())


def _is_excused(error: Exception, group: Group) -> bool:
    """Return whether the group failed; the gate then raises before the step is taken."""
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
