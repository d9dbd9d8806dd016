"""Reports the progress of training: in the log, in the status, and to the launcher."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from ddp_protocol.message import utc
from ddp_protocol.progress import CheckpointStatus

from ddp_trainer.checkpoints.checkpoint import Checkpoint
from ddp_trainer.collectives.group import Group
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.checks.loss_watch import LossWatch, gathered
from ddp_trainer.run.position import Position
from ddp_trainer.telemetry import tensorboard
from ddp_trainer.telemetry.bar import ProgressBar
from ddp_trainer.telemetry.publisher import Publisher
from ddp_trainer.telemetry.status import StatusFile
from ddp_trainer.telemetry.stragglers import Pace
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import Phase, StepTimer

FINAL_WAIT_SECONDS = 30.0
"""How long a finished rank waits for one that died before it knew that everything is saved."""

_logger = logging.getLogger(__name__)


class ProgressWriter:
    """Every rank writes a report; rank 0 also logs, and publishes with its `publisher`."""

    def __init__(
        self,
        report: RankReport,
        timer: StepTimer,
        checkpoint_manager: CheckpointManager,
        voice: Callable[[], Publisher],
        *,
        log_every_steps: int,
    ) -> None:
        """`voice`: creates a publisher whenever this rank becomes rank 0."""
        self._report = report
        self._timer = timer
        self._checkpoint_manager = checkpoint_manager
        self._voice = voice
        self._publisher: Publisher | None = None
        self._log_every_steps = log_every_steps
        self.total_steps: int | None = None
        """Steps of the whole run, if known; the number depends on the world size."""
        self.samples = 0
        """Samples that all ranks have trained on since this process started."""
        self.steps: list[tuple[int, float, float | None]] = []
        """Numbers of completed steps that are not published yet, when they were completed
        (monotonic), and seconds of training up to them; `Steps` appends them."""
        self._checkpoint: Checkpoint | None = None
        self._bar: ProgressBar | None = None
        self._paused_at: float | None = None
        self._text = ""
        self._is_finite = True
        """False: the loss was NaN or infinite at the last interval."""
        self._begun = _Mark(0, 0, time.monotonic())
        self._told = self._begun

    def lead(self, leads: bool) -> None:
        """Note whether this rank is rank 0 of the group that has formed."""
        self.catch_up()
        if leads == (self._publisher is not None):
            return
        if leads:
            self._publisher = self._voice()
            if self._paused_at is not None:
                self._publisher.pause(self._paused_at)
            self._bar = ProgressBar.on_stdout()
        else:
            self._fall_silent()

    def _fall_silent(self) -> None:
        """Stop publishing, because another rank is rank 0 now."""
        if self._publisher is not None:
            self._publisher.resign()
            self._publisher = None
        if self._bar is not None:
            self._bar.end()
            self._bar = None
        self._checkpoint = None
        self._report.update(checkpoint=None)

    def begin(self, position: Position, *, total_steps: int | None) -> None:
        """Note that a group has formed and trains from `position`; `total_steps` None: unknown."""
        self.catch_up()
        self.total_steps = total_steps
        self._paused_at = None
        self._begun = self._told = self._mark(position)
        self._timer.restart()
        self._timer.own_seconds()  # counts from here on
        if self._publisher is not None:
            self._publisher.begin(position.step, total_steps=total_steps)
        self._report.update(step=position.step, total_steps=self.total_steps)
        self.skipped(position)
        self.look_for_checkpoint()

    def pause(self) -> None:
        """Note that the group broke or was left."""
        self.catch_up()
        self._paused_at = time.monotonic()
        if self._publisher is not None:
            self._publisher.pause(self._paused_at)

    def catch_up(self) -> None:
        """Publish the steps that were completed since the last call."""
        steps, self.steps = self.steps, []
        if self._publisher is not None:
            for step, at, trained_seconds in steps:
                self._publisher.step(step, trained_seconds=trained_seconds, at=at)
        if self._bar is not None and steps:
            self._bar.show(steps[-1][0], self.total_steps, self._text)

    def wants_interval(self, position: Position) -> bool:
        """Return whether to exchange losses and times after this step; the same on all ranks."""
        return position.step % self._log_every_steps == 0 or position.step == self.total_steps

    def interval(
        self,
        position: Position,
        losses: Sequence[float],
        group: Group,
        *,
        shards: int,
        watch: LossWatch,
    ) -> float:
        """Exchange the ranks' losses of the last step and the times of their steps.

        The losses add up to those of `shards` shards; the log shows the mean. If it is not finite,
        the ranks find out from `watch` where that began.

        Returns the seconds of a step that the slowest rank needs by itself; the same on all ranks.
        """
        self.catch_up()
        steps = max(position.step - self._told.step, 1)
        own = self._timer.own_seconds() / steps
        sums, slowest, slowest_rank = group.compare(*losses, own, among=own)
        *sums_of_losses, sum_of_own = sums
        # Rounded values would leave others where there are none.
        others = (sum_of_own - slowest) / (group.size - 1) if group.size > 1 else 0.0
        self._timer.lap(Phase.COMMUNICATION)
        mean = sum(sums_of_losses) / shards
        if not math.isfinite(mean):
            self._tell_of_losses(watch, group)
        self._is_finite = math.isfinite(mean)
        watch.clear()
        self._report.update(step=position.step, loss=round(mean, 6))
        now = self._mark(position)
        if self._publisher is not None:
            rate = now.rate_since(self._told)
            self._text = (
                f"step {self._of_all(position.step)} epoch {position.epoch + 1} "
                f"loss {mean:.4f} {rate:.0f} samples/s{self._left(now)}"
            )
            _logger.info("%s", self._text)
            self._publisher.interval(
                step=position.step,
                epoch=position.epoch + 1,
                loss=mean,
                samples_per_second=rate,
                pace=Pace(
                    slowest_rank=slowest_rank,
                    slowest_seconds=slowest,
                    others_seconds=others,
                ),
            )
        self._told = now
        return slowest

    def _tell_of_losses(self, watch: LossWatch, group: Group) -> None:
        """Log the first loss that is not finite, with its rank and samples; a collective."""
        found = gathered(watch.first(group.rank), group)
        if found and self._publisher is not None and self._is_finite:
            _logger.warning("%s", found[0])

    def evaluated(self, position: Position, *, accuracy: float) -> None:
        """Report the accuracy of the model at `position` on the whole test set."""
        self.catch_up()
        self._report.update(
            step=position.step, accuracy=round(accuracy, 6), accuracy_step=position.step
        )
        self._timer.restart()
        if self._publisher is not None:
            _logger.info("step %s test accuracy %.4f", self._of_all(position.step), accuracy)
            self._publisher.evaluated(
                step=position.step, epoch=position.epoch + 1, accuracy=accuracy
            )

    def log(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Publish the script's own numbers."""
        self.catch_up()
        if self._publisher is not None:
            self._publisher.log(position.step, metrics)

    def skipped(self, position: Position) -> None:
        """Publish the number of skipped steps, if there are any."""
        if position.skipped_in_all:
            self.log(position, {"skipped_steps": position.skipped_in_all})

    def finished(self) -> None:
        """Report that everything is trained and saved."""
        self.catch_up()
        self.look_for_checkpoint()
        if self._publisher is not None:
            last = self._publisher.status()
            self._report.update(
                resumed=last.resumed,
                last_step_time=last.last_step_time,
                trained_seconds=last.trained_seconds,
                metrics=last.metrics,
            )
        self._report.update(finished=True)

    def done(self) -> None:
        """Report that the job's result is safe.

        Raises:
            RuntimeError: not everything is saved yet.
        """
        if not self._report.known.finished:
            raise RuntimeError(
                "job.done() was called before everything was saved: call it after the "
                "`with ddp_trainer.join(...)` block"
            )
        self._report.update(done=True)
        if self._publisher is not None:
            self._publisher.done()

    def close(self) -> None:
        """End the reports, because this rank trains no more."""
        self.catch_up()
        self.look_for_checkpoint()
        if self._publisher is not None:
            self._publisher.close()
        if self._bar is not None:
            self._bar.end()

    def look_for_checkpoint(self) -> None:
        """Report the newest checkpoint, if there is another one."""
        found = self._checkpoint_manager.checkpoint
        if found is None or found is self._checkpoint:
            return
        self.catch_up()
        self._checkpoint = found
        saved_at = utc(found.time.timestamp())
        checkpoint = CheckpointStatus(step=found.step, path=str(found.path), time=saved_at)
        self._report.update(checkpoint=checkpoint)
        if self._publisher is not None:
            self._publisher.saved(checkpoint, seconds=found.seconds)

    def _of_all(self, step: int) -> str:
        return f"{step}/{self.total_steps}" if self.total_steps is not None else str(step)

    def _left(self, now: _Mark) -> str:
        if self.total_steps is None:
            return ""
        seconds_a_step = (now.time - self._begun.time) / max(now.step - self._begun.step, 1)
        left = timedelta(seconds=round((self.total_steps - now.step) * seconds_a_step))
        return f" ETA {left}"

    def _mark(self, position: Position) -> _Mark:
        return _Mark(position.step, self.samples, time.monotonic())


class _Mark(NamedTuple):
    """The progress of training at one time."""

    step: int
    samples: int
    time: float

    def rate_since(self, earlier: _Mark) -> float:
        return (self.samples - earlier.samples) / max(self.time - earlier.time, 1e-9)


def voice_of(
    directory: Path | None, timer: StepTimer, *, event_files: bool = False
) -> Callable[[], Publisher]:
    """Return a function that creates the publisher when a process becomes rank 0.

    Raises:
        ConfigurationError: on any rank, TensorBoard's `event_files` are wanted but cannot be
            written.
    """
    if event_files:
        tensorboard.check(directory)
    return lambda: Publisher(
        StatusFile.from_env(os.environ), tensorboard.records(directory, event_files), timer
    )
