"""Tells people how the training goes, and keeps the rank's report up to date."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from ddp_trainer.resume import Keeper
from ddp_trainer.state import Position
from ddp_trainer.termination import RankReport, TerminationReport

_logger = logging.getLogger(__name__)


class Progress:
    """One log line now and then by rank 0; a report by every rank."""

    def __init__(self, report: RankReport, *, rank: int, log_every_steps: int) -> None:
        self._file = report
        self._rank = rank
        self._log_every_steps = log_every_steps
        self._keeper: Keeper | None = None
        self._epoch_length = 0
        self._seen = 0
        self._time = time.monotonic()
        self.total_steps = 0
        """Of the whole run."""
        self.report = TerminationReport(rank=rank)
        """What is known so far."""

    def begin(
        self, position: Position, *, total_steps: int, epoch_length: int, keeper: Keeper
    ) -> None:
        """Training begins, or goes on, at `position`."""
        self._keeper = keeper
        self.total_steps, self._epoch_length = total_steps, epoch_length
        self._time, self._seen = time.monotonic(), self._samples_at(position)
        self.update(step=position.step, total_steps=total_steps)

    def wants_loss(self, position: Position) -> bool:
        """Whether this step's loss is due; the same answer on all ranks."""
        return position.step % self._log_every_steps == 0 or position.step == self.total_steps

    def step(self, position: Position) -> None:
        """A step is complete."""
        self.update(step=position.step)

    def loss(self, position: Position, loss: float) -> None:
        """The last step's loss, as its mean over all ranks, is known."""
        now, seen = time.monotonic(), self._samples_at(position)
        rate = (seen - self._seen) / max(now - self._time, 1e-9)
        self._time, self._seen = now, seen
        self._say(
            f"step {position.step}/{self.total_steps} epoch {position.epoch + 1} "
            f"loss {loss:.4f} {rate:.0f} samples/s"
        )
        self.update(loss=round(loss, 6))

    def evaluated(self, position: Position, *, accuracy: float) -> None:
        """The model of `position` has this accuracy on the whole test set."""
        self._say(f"step {position.step}/{self.total_steps} test accuracy {accuracy:.4f}")
        self.update(accuracy=round(accuracy, 6))

    def finished(self) -> None:
        """All is trained and saved."""
        self.update(finished=True)

    def update(self, **changes: Any) -> None:
        """Set fields of the report and hand it over."""
        newest = self._keeper.newest if self._keeper is not None else None
        self.report = replace(self.report, checkpoint=newest, **changes)
        self._file.write(self.report)

    def _samples_at(self, position: Position) -> int:
        return position.epoch * self._epoch_length + position.samples

    def _say(self, line: str) -> None:
        if self._rank == 0:
            _logger.info(line)
