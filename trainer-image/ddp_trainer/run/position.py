"""How far a run has come, and in which order it goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Position:
    """How far a run has come: always at a boundary between steps of optimizers."""

    step: int = 0
    """Steps completed since the beginning of training."""
    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all ranks together have consumed, padding not counted."""
    turns: int = 0
    """Of the step that comes next: those of its optimizers' turns that are over, where they step
    one after the other."""

    def advance(self, samples: int, *, epoch_length: int) -> None:
        """One more step, on `samples` samples over all ranks, padding included."""
        self.step += 1
        self.turns = 0
        self.samples = min(self.samples + samples, epoch_length)

    def before_evaluation(self, *, epoch_length: int) -> Position:
        """The same place, but the end of an epoch where it is the beginning of the next one.

        Whoever goes on from there evaluates, again if need be.
        """
        if self.epoch == 0 or self.samples > 0:
            return self
        return Position(step=self.step, epoch=self.epoch - 1, samples=epoch_length)

    def next_epoch(self) -> None:
        """The epoch is complete."""
        self.epoch += 1
        self.samples = 0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What decides which samples come in which order, and which random numbers are drawn."""

    seed: int
    samples: int = 0
    """In the training set; 0: nobody has said yet."""
