"""Finds flipped bits: after a step, all ranks must have the same parameters and optimizer states.

The ranks compare fingerprints every few steps, before each save, at the end of each loop over
batches, and when a group has formed. If they differ, all ranks return to their newest copy of an
equal state in memory, and repeat the steps since then. A rank that differs from most others ends.

Buffers are not compared: in each step rank 0's replace those of the others.

The ranks can also compare gradients that all have computed from the same batch, in a probe. A rank
with wrong gradients makes the states of all ranks wrong, and they stay equal. So if there are
probes, only a state right after an equal one is copied. Before the first probe, that is the state
with which all ranks began.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.checkpoints.snapshot import Snapshot
from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import DifferingReplicasError, FlippedBitsError, LeavingError
from ddp_trainer.library.checks.replicas import Replica, faulty, in_words, step_to_return_to
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import tensors

_COPY_SHARE = 0.01
"""Part of the time that copies may take; the end of a loop over batches needs one in any case."""

_logger = logging.getLogger(__name__)


def compared(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    """Yield the tensors that must be equal on all ranks."""
    for model in models:
        yield from model.parameters()
    for optimizer in optimizers:
        yield from tensors(list(optimizer.state.values()))


class Verification:
    """Compares this rank's replica with those of the other ranks."""

    def __init__(self, run: TrainState, *, every_steps: int, probe_every_steps: int = 0) -> None:
        """`every_steps`: steps between comparisons of replicas; 0: do not compare them.

        `probe_every_steps`: the same for gradients.
        """
        self._run = run
        self._every_steps = every_steps
        self._probe_every_steps = probe_every_steps
        self._equal_at: int | None = None
        """The newest step after which all ranks were equal."""
        self._gradients_equal_at: int | None = None
        """The newest step after which all ranks computed the same gradients."""
        self._memory = Snapshot()
        self._kept: dict[str, Any] = {}
        """The newest copy of a state that all ranks had; empty: none."""
        self._is_copy_due = False
        self._is_disputed = False
        """True: the ranks differed, and the group broke before this rank knew what follows."""
        self._copied_at = -math.inf
        self._copy_seconds = 0.0

    def begin(self, group: Group, *, had_state: bool, may_return: bool) -> None:
        """Compare the ranks of a group that has formed; a collective.

        `had_state`: this rank had the state of the group already. `may_return`: its script can
        repeat earlier steps now.

        Raises:
            Exception: see `check`.
        """
        if self._every_steps == 0 and self._probe_every_steps == 0:
            return
        if group.size == 1:  # its steps are not compared, so it must not return across them
            self._kept, self._is_copy_due = {}, False
            return
        may_return = may_return or not had_state
        self._compare(group, must_keep=True, had_state=had_state, may_return=may_return)

    def rank_to_probe(self, group: Group, *, is_needed: bool) -> int | None:
        """Return the rank whose batch all ranks must compute after a step; None: no probe is due.

        `is_needed`: the state after this step is saved, or the script cannot repeat the step later.
        """
        every, step = self._probe_every_steps, self._run.position.step
        if every == 0 or group.size == 1 or not (is_needed or step % every == 0):
            return None
        return step // every % group.size

    def check(
        self,
        group: Group,
        *,
        gradients: int | None = None,
        is_needed: bool,
        is_last: bool,
        may_return: bool,
    ) -> bool:
        """Compare the ranks after a step, if it is time or needed; a collective.

        `gradients`: fingerprint of this rank's gradients in a probe; None: there was none.
        `is_last`: the script cannot repeat this step later. `may_return`: it can do so now.

        Returns:
            Whether the ranks were compared.

        Raises:
            FlippedBitsError: this rank differs from most ranks.
            LeavingError: other ranks differ. The run has returned to an earlier step.
            DifferingReplicasError: other ranks differ, and the run cannot return to such a step.
        """
        every, step = self._every_steps, self._run.position.step
        is_due = every > 0 and (is_needed or is_last or step % every == 0)
        is_compared = group.size > 1 and (is_due or gradients is not None)
        if is_compared:
            self._compare(
                group, gradients, must_keep=is_last, had_state=True, may_return=may_return
            )
        if is_last and gradients is None and self._probe_every_steps > 0:
            self._kept = {}  # the script cannot return to it, and no probe has confirmed this state
        return is_compared

    def keep(self) -> None:
        """Copy the state before the next step changes it, if the ranks have agreed on that."""
        if not self._is_copy_due:
            return
        # Not right after the comparison: the script may work on its state between two loops.
        self._is_copy_due = False
        begin = time.monotonic()
        self._kept = self._memory.take(self._run.full_state_dict())
        self._copied_at = time.monotonic()
        self._copy_seconds = self._copied_at - begin

    def _compare(
        self,
        group: Group,
        gradients: int | None = None,
        *,
        must_keep: bool,
        had_state: bool,
        may_return: bool,
    ) -> None:
        own = 0
        if self._every_steps > 0:
            own = sum_of_bits(compared(self._run.models, self._run.optimizers))
        since = time.monotonic() - self._copied_at
        may_keep = must_keep or self._copy_seconds <= _COPY_SHARE * since
        replicas, computed, (all_keep, _), (_, is_trained), (_, is_disputed) = group.bounds(
            own, gradients or 0, may_keep, had_state, self._is_disputed
        )
        if len({*replicas}) > 1 or is_disputed:
            self._resolve(
                group,
                own,
                had_state=had_state,
                may_return=may_return,
                of_gradients=self._every_steps == 0,
            )
        if len({*computed}) > 1:
            self._resolve(
                group, gradients or 0, had_state=True, may_return=may_return, of_gradients=True
            )
        step = self._run.position.step
        if self._every_steps > 0:
            self._equal_at = step
        if gradients is not None:
            self._gradients_equal_at = step
        if self._probe_every_steps == 0 or gradients is not None or not is_trained:
            self._is_copy_due = bool(all_keep)

    def _resolve(
        self,
        group: Group,
        own: int,
        *,
        had_state: bool,
        may_return: bool,
        of_gradients: bool = False,
    ) -> NoReturn:
        equal_at = self._gradients_equal_at if of_gradients else self._equal_at
        tell = partial(in_words, equal_at=equal_at, of_gradients=of_gradients)
        # Others may know the faulty rank and return, and that rank may end, before this one knows.
        self._is_disputed = True
        step = self._run.position.step
        if self._is_copy_due:  # the copy is of an earlier step than the script can return to
            self._kept, self._is_copy_due = {}, False
        kept = self._kept["position"]["step"] if self._kept else None
        mine = json.dumps(Replica(own, kept, had_state)).encode()
        replicas = [Replica(*json.loads(each)) for each in group.gather(mine)]
        ranks = faulty(replicas)
        if group.rank in ranks:
            raise FlippedBitsError(tell([group.rank], step))
        what = tell(ranks, step)
        to = step_to_return_to(replicas, without=ranks)
        if not may_return or to is None or to >= step:
            raise DifferingReplicasError(f"{what}; restarting from the newest checkpoint")
        _logger.warning("%s; returning from step %d to step %d in memory", what, step, to)
        self._is_disputed = False
        if self._kept:
            # Of the copy, because optimizers take the tensors that they load as their own.
            self._run.load_state_dict(copy.deepcopy(self._kept))
        else:
            self._run.is_fresh = True
        raise LeavingError(what)
