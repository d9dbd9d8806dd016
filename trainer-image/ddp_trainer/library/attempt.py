"""A step that is being tried, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddp_trainer.run.run import Before


@dataclass(kw_only=True)
class Attempt:
    """What is known of a step before all ranks know that it can be taken."""

    before: Before
    answered: int
    """What the script had asked for by then."""
    sizes: list[int]
    """Samples of each of this rank's batches."""
    ends_epoch: bool
    is_asked: bool = False
    """Whether the ranks ask each other if the epoch ends with it: no one rank knows."""
    given: int = 0
    """Batches that the script has got."""
    stepped: int = 0
    """Batches after which it has called `step`."""
    turns: int = 0
    """How often it has called `step` for one of its optimizers."""
    _losses: list[Tensor | float] = field(default_factory=list)

    @property
    def batches(self) -> int:
        """Of this rank."""
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """Of this rank."""
        return sum(self.sizes)

    @property
    def weight(self) -> float:
        """The part of the samples that are in the batch given last."""
        return self.sizes[max(self.given, 1) - 1] / self.samples

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
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)

    def loss(self) -> float:
        """The sum of those that the script has told, NaN if it has told none."""
        if not self._losses:
            return float("nan")
        if len(self._losses) == 1:
            return float(self._losses[0])
        return float(torch.stack([torch.as_tensor(loss) for loss in self._losses]).sum())
