"""A step that is being tried, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.run.buffers import Copies


@dataclass(kw_only=True)
class Attempt:
    """A step until all ranks know that it can be taken."""

    before: Copies
    assignment: ShardAssignment
    samples: int
    """Samples of the step over all ranks, padding included."""
    sizes: list[int]
    """Samples that count in each of this rank's batches."""
    ends_epoch: bool
    own: Sequence[int] = ()
    """Indices of this rank's samples that count."""
    is_asked: bool = False
    """True if ranks must vote on whether the epoch ends with the step."""
    given: int = 0
    """Batches that the script has received."""
    stepped: int = 0
    """Batches after which the script has called `step`."""
    turns: int = 0
    """Number of calls of `step` for one of several optimizers."""
    is_skipped: bool = False
    """True if all ranks know that the step must not be applied."""
    buffers: Copies | None = None
    """Buffers after this rank's first part, if it computes several parts."""
    taken_in: int | None = None
    """Number of the group in which the step was taken; None: it was not."""
    gradients: int | None = None
    """Fingerprint of this rank's own gradients in the probe, or in the one after this step."""
    losses_told: list[Tensor | float] = field(default_factory=list)
    """Losses that the script has passed to `step`."""
    batches: int = field(init=False)
    """Number of this rank's batches."""
    _slots: list[int] = field(default_factory=list)
    """The slots of their parts."""

    def __post_init__(self) -> None:
        self.batches = len(self.sizes)

    @property
    def place(self) -> tuple[int, int]:
        """Return the slot of the last batch, and the batch's number in its part."""
        return divmod(self._last, self._batches_a_slot) if self.batches > 1 else (0, 0)

    @property
    def weight(self) -> float:
        """Return the last batch's share of the samples of its part."""
        slot, _ = self.place
        return self.sizes[self._last] / max(self._samples_of(slot), 1)

    @property
    def weight_of_part(self) -> float:
        """Return the size of its part in shards; 0 if the last batch is ignored."""
        slot, _ = self.place
        return self._weight_of(slot) if self.sizes[self._last] else 0.0

    @property
    def _last(self) -> int:
        return max(self.given, 1) - 1

    @property
    def _batches_a_slot(self) -> int:
        return len(self.sizes) // self.assignment.slots

    def _samples_of(self, slot: int) -> int:
        begin = slot * self._batches_a_slot
        return sum(self.sizes[begin : begin + self._batches_a_slot])

    def _weight_of(self, slot: int) -> float:
        return self._samples_of(slot) * self.assignment.shards / self.samples

    def give(self) -> int:
        """Count a batch that the script receives; return its number, from 0."""
        self.given += 1
        return self.given - 1

    def stepped_with(self, loss: Tensor | float | None) -> bool:
        """Count a call of `step`; return whether it followed the last batch."""
        self.stepped += 1
        if loss is not None:
            self._note(loss)
        return self.stepped == self.batches

    def expect_step(self) -> None:
        """Check that the script has called `step` after the last batch."""
        if self.stepped < self.given and self.turns == 0:
            raise RuntimeError(
                "the loop asked for another batch without job.step(): call it once after each batch"
            )

    def take_turn(self, loss: Tensor | float | None) -> int:
        """Count a call of `step` for one of several optimizers; return its number, from 0."""
        self.stepped = self.batches
        self.turns += 1
        if loss is not None:
            self._note(loss)
        return self.turns - 1

    def _note(self, loss: Tensor | float) -> None:
        if self.sizes[self._last]:
            self.losses_told.append(loss.detach() if isinstance(loss, Tensor) else loss)
            self._slots.append(self.place[0])

    def losses(self) -> list[float]:
        """Return the loss of each part times its weight, 0 for parts of other ranks.

        In a plain assignment, return this rank's loss alone. A part's loss is the sum of those that
        the script passed to `step`, or NaN if it passed none.
        """
        if self.assignment.is_plain:
            return [self._loss(0)]
        found = [0.0] * self.assignment.parts
        for slot in filter(self._samples_of, range(self.assignment.slots)):
            found[self.assignment.part(slot)] = self._weight_of(slot) * self._loss(slot)
        return found

    def _loss(self, slot: int) -> float:
        pairs = zip(self._slots, self.losses_told, strict=True)
        told = [loss for of, loss in pairs if of == slot]
        if not told:
            return float("nan")
        if len(told) == 1:
            return float(told[0])
        return float(torch.stack([torch.as_tensor(loss) for loss in told]).sum())
