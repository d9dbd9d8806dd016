"""A step that is being tried, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.run.buffers import Copies


@dataclass(kw_only=True)
class Attempt:
    """What is known of a step before all ranks know that it can be taken."""

    before: Copies
    assignment: ShardAssignment
    samples: int
    """Of the step, over all ranks, padding included."""
    sizes: list[int]
    """Samples that count, of each of this rank's batches."""
    ends_epoch: bool
    is_asked: bool = False
    """Whether the ranks ask each other if the epoch ends with it: no one rank knows."""
    given: int = 0
    """Batches that the script has got."""
    stepped: int = 0
    """Batches after which it has called `step`."""
    turns: int = 0
    """How often it has called `step` for one of its optimizers."""
    buffers: Copies | None = None
    """As this rank's first part has left them, where it computes more of them."""
    _losses: list[tuple[int, Tensor | float]] = field(default_factory=list)
    """With the slots of their parts."""

    @property
    def batches(self) -> int:
        """Of this rank."""
        return len(self.sizes)

    @property
    def place(self) -> tuple[int, int]:
        """The slot of the batch given last, and which of its part's batches it is."""
        return divmod(self._last, self._batches_a_slot)

    @property
    def weight(self) -> float:
        """The part of its part's samples that are in the batch given last."""
        slot, _ = self.place
        return self.sizes[self._last] / max(self._samples_of(slot), 1)

    @property
    def weight_of_part(self) -> float:
        """How many shards' worth its part is; 0 where the batch given last counts for nothing."""
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
        """Give a batch; returns its number, from 0."""
        self.given += 1
        return self.given - 1

    def stepped_with(self, loss: Tensor | float | None) -> bool:
        """The script has called `step`; returns whether that was after the last batch."""
        self.stepped += 1
        self._note(loss)
        return self.stepped == self.batches

    def take_turn(self, loss: Tensor | float | None) -> int:
        """The script has called `step` for one of its optimizers; returns its number, from 0."""
        self.stepped = self.batches
        self.turns += 1
        self._note(loss)
        return self.turns - 1

    def _note(self, loss: Tensor | float | None) -> None:
        if loss is not None and self.sizes[self._last]:
            slot, _ = self.place
            self._losses.append((slot, loss.detach() if isinstance(loss, Tensor) else loss))

    def losses(self) -> list[float]:
        """Of each part, times its weight; 0 of other ranks'. Where plain, this rank's alone.

        The sum of those that the script has told, NaN if it has told none.
        """
        if self.assignment.is_plain:
            return [self._loss(0)]
        found = [0.0] * self.assignment.parts
        for slot in filter(self._samples_of, range(self.assignment.slots)):
            found[self.assignment.part(slot)] = self._weight_of(slot) * self._loss(slot)
        return found

    def _loss(self, slot: int) -> float:
        told = [loss for of, loss in self._losses if of == slot]
        if not told:
            return float("nan")
        if len(told) == 1:
            return float(told[0])
        return float(torch.stack([torch.as_tensor(loss) for loss in told]).sum())
