"""A step that is being tried, batch by batch.

The loop counts the batches that the script receives, and `Steps` the calls of `step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.run.buffers import Copies

NO_STEP = "the loop asked for another batch without job.step(): call it once after each batch"


@dataclass(kw_only=True)
class Attempt:
    """A step until all ranks know that it can be taken."""

    before: Copies
    assignment: ShardAssignment
    samples: int
    """Samples of the step over all ranks, padding included."""
    sizes: list[int]
    """Samples that count in each of this rank's batches."""
    batches: int
    """Number of this rank's batches."""
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
    slot: int = 0
    """The slot of the last batch."""
    losses: list[Tensor | float] = field(default_factory=list)
    """Losses that the script has passed to `step`, of batches that count."""
    slots: list[int] = field(default_factory=list)
    """The slots of their parts."""

    def begin_batch(self) -> int:
        """Find the slot of the last of several batches; return the batch's number in its part."""
        self.slot, batch = divmod(self._last, self._batches_a_slot)
        return batch

    @property
    def weight(self) -> float:
        """Return the last batch's share of the samples of its part."""
        return self.sizes[self._last] / max(self._samples_of(self.slot), 1)

    @property
    def weight_of_part(self) -> float:
        """Return the size of its part in shards; 0 if the last batch is ignored."""
        return self._weight_of(self.slot) if self.sizes[self._last] else 0.0

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

    def losses_of_parts(self) -> list[float]:
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
        pairs = zip(self.slots, self.losses, strict=True)
        told = [loss for of, loss in pairs if of == slot]
        if not told:
            return float("nan")
        if len(told) == 1:
            return float(told[0])
        return float(torch.stack([torch.as_tensor(loss) for loss in told]).sum())
