"""Finds flipped bits: after a step, all ranks must have the same parameters and optimizer states.

The ranks compare fingerprints every few steps, before each save, at the end of each loop over
batches, and when a group has formed. If they differ, all ranks return to their newest copy of an
equal state in memory, and repeat the steps since then. A rank that differs from most others ends.

Buffers are not compared: in each step rank 0's replace those of the others.

Of a sharded model with replicas (HSDP), each rank is compared with those that have the same part.

The ranks can also compare gradients that all have computed from the same batch, in a probe. A rank
with wrong gradients makes the states of all ranks wrong, and they stay equal. So if there are
probes, only a state right after an equal one is copied. Before the first probe, that is the state
with which all ranks began.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import (
    ConfigurationError,
    DifferingReplicasError,
    FlippedBitsError,
    LeavingError,
)
from ddp_trainer.library.checks.replicas import Replica, faulty, in_words, step_to_return_to
from ddp_trainer.library.checks.state_copy import KeptState, StateCopy
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import tensors

_logger = logging.getLogger(__name__)


def compared(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    """Yield the tensors that must be equal on all ranks, or on those with the same part."""
    for model in models:
        yield from model.parameters()
    for optimizer in optimizers:
        yield from tensors(list(optimizer.state.values()))


def sum_of_state(run: TrainState) -> int:
    """Return a sum of all bits of what is compared; of a sharded model, of this rank's part."""
    return sum_of_bits(map(_local, compared(run.models, run.optimizers)))


def _local(tensor: Tensor) -> Tensor:
    # By name, because the import of DTensor takes a second, which only sharded models need.
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


class Part(NamedTuple):
    """The part of the models that a rank has."""

    number: int
    parts: int
    """Number of parts; 0: no other rank has the same part."""


WHOLE = Part(0, 1)
"""A model that is not sharded."""


class Verification:
    """Compares this rank's replica with those of the other ranks."""

    def __init__(
        self,
        run: TrainState,
        *,
        every_steps: int,
        probe_every_steps: int = 0,
        part: Part = WHOLE,
        kept: KeptState | None = None,
    ) -> None:
        """`every_steps`: steps between comparisons of replicas; 0: do not compare them.

        `probe_every_steps`: the same for gradients. `part`: of a sharded model. `kept`: state to
        which this rank can return; None: a copy.
        """
        self._run = run
        self._every_steps = every_steps
        self._probe_every_steps = probe_every_steps
        self._part = part
        self._compares = every_steps > 0 or part.parts > 1
        """Wrong parts make the gradients of their replica wrong, so both are compared."""
        self._keeps = kept is not None or every_steps > 0 or probe_every_steps > 0
        self._kept: KeptState = kept or StateCopy(run)
        self._equal_at: int | None = None
        """The newest step after which all ranks were equal."""
        self._gradients_equal_at: int | None = None
        """The newest step after which all ranks computed the same gradients."""
        self._is_disputed = False
        """True: the ranks differed, and the group broke before this rank knew what follows."""

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
            self._kept.forget()
            return
        may_return = may_return or not had_state
        self._is_disputed = self._is_disputed and not self._kept.is_present
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
            # The script cannot return to it, and no probe has confirmed this state.
            self._kept.forget()
        return is_compared

    def keep(self) -> None:
        """Copy the state before the next step changes it, if the ranks have agreed on that."""
        if self._keeps:
            self._kept.take()

    def _compare(
        self,
        group: Group,
        gradients: int | None = None,
        *,
        must_keep: bool,
        had_state: bool,
        may_return: bool,
    ) -> None:
        own = sum_of_state(self._run) if self._compares else 0
        number, parts = self._part
        *replicas, computed, (all_keep, _), (_, is_trained), (_, is_disputed) = group.bounds(
            *(own if part == number else None for part in range(parts)),
            gradients or 0,
            must_keep or self._kept.is_cheap,
            had_state,
            self._is_disputed,
        )
        if any(least != greatest for least, greatest in replicas) or is_disputed:
            self._resolve(
                group,
                own,
                had_state=had_state,
                may_return=may_return,
                of_gradients=not self._compares,
            )
        if len({*computed}) > 1:
            self._resolve(
                group, gradients or 0, had_state=True, may_return=may_return, of_gradients=True
            )
        step = self._run.position.step
        if self._compares:
            self._equal_at = step
        if gradients is not None:
            self._gradients_equal_at = step
        may_keep = self._probe_every_steps == 0 or gradients is not None or not is_trained
        if may_keep and all_keep:
            self._kept.note()

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
        if self._part.parts > 1 and self._equal_at is None and self._run.position.step == 0:
            raise ConfigurationError(
                "the replicas of the sharded model differ before the first step: call "
                "torch.manual_seed() with one number on all ranks before you create the model"
            )
        # Others may know the faulty rank and return, and that rank may end, before this one knows.
        self._is_disputed = True
        step = self._run.position.step
        if self._kept.is_due:  # the copy is of an earlier step than the script can return to
            self._kept.forget()
        part = 0 if of_gradients else self._part.number
        mine = json.dumps(Replica(own, self._kept.step, had_state, part)).encode()
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
        self._kept.load()
        raise LeavingError(what)
