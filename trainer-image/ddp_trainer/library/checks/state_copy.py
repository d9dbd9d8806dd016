"""The copy in memory of a state that all ranks had, to which they return if they differ later."""

from __future__ import annotations

import copy
import math
import time
from typing import Any, Protocol

from ddp_trainer.checkpoints.snapshot import Snapshot
from ddp_trainer.run.train_state import TrainState

_COPY_SHARE = 0.01
"""Part of the time that copies may take; the end of a loop over batches needs one in any case."""


class KeptState(Protocol):
    """A state to which this rank can return."""

    @property
    def step(self) -> int | None:
        """Return its step; None: there is no state."""

    @property
    def is_due(self) -> bool:
        """Return whether the present state will replace it."""

    @property
    def is_cheap(self) -> bool:
        """Return whether a copy now does not take too much of the time."""

    @property
    def is_present(self) -> bool:
        """Return whether the ranks that form a group have returned to it already."""

    def note(self) -> None:
        """Note that the present state is to replace it before the next step."""

    def take(self) -> None:
        """Copy the present state if that is due; the next step will change it."""

    def forget(self) -> None:
        """Forget it, because the script cannot return to its step."""

    def load(self) -> None:
        """Return to it."""


class StateCopy:
    """A copy of the whole state, in the memory of this rank."""

    is_present = False

    def __init__(self, run: TrainState) -> None:
        self._run = run
        self._memory = Snapshot()
        self._kept: dict[str, Any] = {}
        """Empty: none."""
        self.is_due = False
        self._copied_at = -math.inf
        self._seconds = 0.0

    @property
    def step(self) -> int | None:
        """Return its step; None: there is none."""
        return self._kept["position"]["step"] if self._kept else None

    @property
    def is_cheap(self) -> bool:
        """Return whether a copy now keeps to its share of the time."""
        return self._seconds <= _COPY_SHARE * (time.monotonic() - self._copied_at)

    def note(self) -> None:
        """Note that a copy is due."""
        self.is_due = True

    def take(self) -> None:
        """Copy the state before the next step changes it, if the ranks have agreed on that."""
        if not self.is_due:
            return
        # Not right after the comparison: the script may work on its state between two loops.
        self.is_due = False
        begin = time.monotonic()
        self._kept = self._memory.take(self._run.full_state_dict())
        self._copied_at = time.monotonic()
        self._seconds = self._copied_at - begin

    def forget(self) -> None:
        """Forget the copy."""
        self._kept, self.is_due = {}, False

    def load(self) -> None:
        """Return to the copied state, or to none if a rank without a copy receives it."""
        if self._kept:
            # Of the copy, because optimizers take the tensors that they load as their own.
            self._run.load_state_dict(copy.deepcopy(self._kept))
        else:
            self._run.is_fresh = True
