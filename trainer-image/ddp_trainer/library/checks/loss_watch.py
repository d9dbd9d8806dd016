"""Finds the first loss of this rank that is NaN or infinite, and the samples of its step.

One such loss makes the weights of all ranks NaN, and so all later losses: only the first one tells
which samples to look at. Losses are read at intervals, because reading one waits for the device.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ddp_trainer.collectives.group import Group

_MOST_STEPS = 1000
"""Steps since the last interval that are kept."""
_SHOWN = 10
"""Samples in a message; a step may have thousands."""


class NonFinite(NamedTuple):
    """A loss that is NaN or infinite; its fields travel in this order."""

    step: int
    rank: int
    loss: str
    samples: list[int]
    """Indices of the first samples of the rank's step."""
    size: int
    """Number of its samples."""

    def __str__(self) -> str:
        where = f"step {self.step} of rank {self.rank}"
        return f"the loss is first {self.loss} in {where}: samples {self.shown}"

    @property
    def shown(self) -> str:
        """The samples, for messages."""
        return ", ".join(map(str, self.samples)) + (", …" if self.size > _SHOWN else "")


def find(
    step: int, rank: int, losses: Sequence[Tensor | float], samples: Sequence[int]
) -> NonFinite | None:
    """Return the first loss of a rank's step that is not finite; waits for the device."""
    for loss in map(float, losses):
        if not math.isfinite(loss):
            return NonFinite(step, rank, str(loss), list(samples[:_SHOWN]), len(samples))
    return None


def gathered(own: NonFinite | None, group: Group) -> list[NonFinite]:
    """Return what all ranks have found, by step and rank; a collective."""
    told = map(json.loads, group.gather(json.dumps(own).encode()))
    return sorted(NonFinite(*found) for found in told if found)


Losses = tuple[int, Sequence[Tensor | float], Sequence[int]]
"""The number of a step, its losses, and the indices of its samples."""


class LossWatch:
    """The losses of one rank since the last interval."""

    def __init__(self) -> None:
        self._steps: deque[Losses] = deque(maxlen=_MOST_STEPS)
        self.note: Callable[[Losses], None] = self._steps.append
        """Note the losses of a complete step."""

    def first(self, rank: int) -> NonFinite | None:
        """Return the first loss that is not finite; None: all are, or the script passes none."""
        each = (find(step, rank, losses, samples) for step, losses, samples in self._steps)
        return next(filter(None, each), None)

    def clear(self) -> None:
        """Begin another interval."""
        self._steps.clear()
