"""How a run is told to stop, and how all its ranks stop at the same step.

A signal reaches the ranks at different moments. Each rank puts what it knows into a sum over all
ranks at every step; the sum is begun before the step's computation and read after it, so that its
time hides behind the computation.
"""

from __future__ import annotations

import signal
from types import FrameType

import torch

from ddp_trainer.group import Group


class StopSignal:
    """Remembers that this rank was told to stop; being told twice changes nothing."""

    def __init__(self) -> None:
        self._told = False

    def told(self) -> bool:
        """Whether this rank was told to stop."""
        return self._told

    def listen(self) -> None:
        """From here on a signal is remembered instead of ending the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _signal: int, _frame: FrameType | None) -> None:
        self._told = True

    def start_vote(self, group: Group) -> Vote:
        """Begin to ask all ranks whether any of them was told to stop."""
        return Vote(group, told=self._told)


class Vote:
    """A question under way; all ranks must ask and read it at the same points."""

    def __init__(self, group: Group, *, told: bool) -> None:
        self._count = torch.tensor([1.0 if told else 0.0])
        self._work = group.start_sum(self._count)

    def says_stop(self) -> bool:
        """Whether any rank was told to stop when the vote began; the same answer on all ranks."""
        self._work.wait()
        return bool(self._count.item() > 0)
