"""How far a run has come, and in which order it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class Position:
    """How far a run has come: always at a boundary between steps of optimizers."""

    step: int = 0
    """Steps completed since the beginning of training."""
    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all ranks together have consumed, padding not counted; batches,
    where each rank reads a stream of its own."""
    turns: int = 0
    """Of the step that comes next: those of its optimizers' turns that are over, where they step
    one after the other."""
    is_at_end: bool = False
    """All steps of this epoch are over; an evaluation may be due."""

    def advance(self, samples: int, *, epoch_length: int) -> None:
        """One more step, on `samples` samples over all ranks, padding included.

        `epoch_length`: samples in all, or 0 where nobody knows.
        """
        self.step += 1
        self.turns = 0
        self.samples += samples
        if 0 < epoch_length <= self.samples:
            self.end(epoch_length=epoch_length)

    def end(self, *, epoch_length: int) -> None:
        """There are no more steps in this epoch."""
        self.samples, self.is_at_end = epoch_length, True

    def before_evaluation(self, *, epoch_length: int) -> Position:
        """The same place, but the end of an epoch where it is the beginning of the next one.

        Whoever goes on from there evaluates, again if need be.
        """
        if self.epoch == 0 or self.samples > 0 or self.turns > 0 or self.is_at_end:
            return self
        ended = Position(step=self.step, epoch=self.epoch - 1)
        ended.end(epoch_length=epoch_length)
        return ended

    def next_epoch(self) -> None:
        """The epoch is complete."""
        self.epoch += 1
        self.samples, self.is_at_end = 0, False


@dataclass(frozen=True, kw_only=True)
class Order:
    """What decides which samples come in which order, and which random numbers are drawn."""

    seed: int
    samples: int = 0
    """In the training set; 0: nobody has said yet, or knows."""
    readers: int = 0
    """Ranks that each read a stream of their own; 0: they share out samples."""
    shards: int = 0
    """Logical shards that make a step; 0: as many as there are ranks."""


@dataclass(frozen=True, kw_only=True)
class Bookmarks:
    """Where the streams stood that the ranks read, as each stream has told it."""

    epoch: int
    batches: int
    """That each rank had read of it."""
    states: list[Any]
    """By rank."""
