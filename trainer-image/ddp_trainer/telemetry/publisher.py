"""Publishes a training's status, measurements and history from rank 0.

Nothing here may end or delay the training. The status is written to memory, at most a few times a
second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Any

from ddp_protocol.message import utc_to_the_millisecond
from ddp_protocol.progress import CheckpointStatus, Resumption

from ddp_trainer.system.logs import DistinctErrors
from ddp_trainer.telemetry.histogram import Histogram
from ddp_trainer.telemetry.history import History, Record
from ddp_trainer.telemetry.status import Measurements, Status, StatusFile, predecessor
from ddp_trainer.telemetry.stragglers import Pace, Straggler, StragglerWatch
from ddp_trainer.telemetry.timing import Phase, StepTimer

_INTERVAL_SECONDS = 0.25

_LARGEST_COUNT = 64
"""Limit of names of a script's own metrics."""

_NOTHING = Measurements(
    step_seconds=0.0,
    step_counts=(),
    phase_seconds=dict.fromkeys(Phase, 0.0),
    reforms=0,
    reform_seconds=0.0,
)

_logger = logging.getLogger(__name__)


class Publisher:
    """Publishes for rank 0. Counters continue those of rank 0's previous process in this pod."""

    def __init__(
        self, file: StatusFile | None, records: Sequence[Record], timer: StepTimer
    ) -> None:
        """`file`: None if it is not served. `records`: empty if nothing is saved."""
        self._file = file
        self._records = records
        self._history = next((each for each in records if isinstance(each, History)), None)
        self._timer = timer
        self._watch = StragglerWatch()
        self._straggler: Straggler | None = None
        before = predecessor(file)
        self._before = before.measurements or _NOTHING
        self._histogram = Histogram(self._before.step_counts, total=self._before.step_seconds)
        self._reforms, self._reform_seconds = self._before.reforms, self._before.reform_seconds
        has_predecessor = sum(self._before.step_counts) > 0
        self._paused_at = time.monotonic() if has_predecessor else None
        self._told_phases = dict(timer.seconds)
        self._step = 0
        self._step_began = 0.0
        self._step_seconds: list[float] = []
        """Of the steps since the last time that anything was published."""
        self._longest_step = 0.0
        self._formed_at: float | None = None
        """Unix time; None after the group's first step is published."""
        self._last_step_at: float | None = None
        """Unix time; None: this process has completed no step."""
        self._trained_seconds: float | None = None
        """None: unknown, or the group has completed no step."""
        self._due = 0.0
        self._logged: dict[str, float] = {}
        """The script's own metrics that are not recorded yet."""
        self._logged_at = 0
        self._status = Status(step=0, last_step_time=before.last_step_time)
        self._errors = DistinctErrors(_logger, "cannot write the status")

    def begin(self, step: int, *, total_steps: int | None) -> None:
        """Record that a group has formed and trains from `step`. `total_steps` None: unknown."""
        now = time.monotonic()
        if self._paused_at is not None:
            self._reforms += 1
            self._reform_seconds += now - self._paused_at
            self._paused_at = None
        self._step_began = now
        self._formed_at = time.time()
        resumed = Resumption(step=step, time=utc_to_the_millisecond(self._formed_at))
        # Another group has other ranks, so its comparisons begin again.
        self._status = replace(
            self._status, total_steps=total_steps, resumed=resumed, slowest_rank=None, pace=None
        )
        for record in self._records:
            record.rewind(step)
        self._step = step
        self._trained_seconds = None
        self._publish(now)
        self._due = now  # the first step ends an outage: publish it at once

    def pause(self, at: float) -> None:
        """Record that the group broke or was left at this time; training pauses.

        The next rank 0 may be another process that writes to the same files.
        """
        self._paused_at = at
        self._write_logged()
        self._close_records()

    def step(
        self, step: int, *, trained_seconds: float | None = None, at: float | None = None
    ) -> None:
        """Record a step that was completed at this time (monotonic); None: now.

        `trained_seconds`: time that training to it took; None: unknown.
        """
        now = time.monotonic()
        at = now if at is None else at
        seconds = at - self._step_began
        self._step_seconds.append(seconds)
        self._longest_step = max(self._longest_step, seconds)
        self._step_began = at
        if self._logged:
            self._write_logged()
        self._step = step
        self._last_step_at = time.time() - (now - at)
        self._trained_seconds = trained_seconds
        if self._formed_at is not None:
            self._tell_start(self._formed_at)
        if at >= self._due:
            self._publish(at)

    def interval(
        self,
        *,
        step: int,
        epoch: int,
        loss: float,
        samples_per_second: float,
        pace: Pace,
    ) -> None:
        """Record the measurements of some completed steps."""
        self._compare(pace)
        slowest_rank = self._straggler.rank if self._straggler is not None else None
        self._status = replace(
            self._status,
            epoch=epoch,
            loss=loss,
            samples_per_second=samples_per_second,
            slowest_rank=slowest_rank,
            pace=pace.status(step),
        )
        phases = {
            f"{phase}Seconds": round(seconds - self._told_phases[phase], 6)
            for phase, seconds in self._timer.seconds.items()
        }
        self._told_phases = dict(self._timer.seconds)
        longest, self._longest_step = self._longest_step, 0.0
        self._write(
            "training",
            step=step,
            epoch=epoch,
            loss=loss,
            samplesPerSecond=round(samples_per_second, 3),
            lastStepTime=self._last_step_time(),
            **phases,
            longestStepSeconds=round(longest, 6),
            paceRank=pace.slowest_rank,
            paceSeconds=round(pace.slowest_seconds, 6),
            othersPaceSeconds=round(pace.others_seconds, 6),
            **({} if slowest_rank is None else {"slowestRank": slowest_rank}),
        )

    def evaluated(self, *, step: int, epoch: int, accuracy: float) -> None:
        """Record the model's accuracy at `step` on the whole test set."""
        self._status = replace(self._status, accuracy=round(accuracy, 6), accuracy_step=step)
        self._write(
            "evaluation",
            step=step,
            epoch=epoch,
            accuracy=accuracy,
            lastStepTime=self._last_step_time(),
        )
        self._step_began = time.monotonic()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the script's own metrics of a step."""
        known = {**(self._status.metrics or {}), **metrics}
        self._status = replace(self._status, metrics=dict(islice(known.items(), _LARGEST_COUNT)))
        self._logged.update(islice(metrics.items(), _LARGEST_COUNT))
        self._logged_at = step

    def saved(self, checkpoint: CheckpointStatus, *, seconds: float | None = None) -> None:
        """Record a complete checkpoint and the time to write it; None: another process wrote it."""
        self._write_logged()
        self._status = replace(self._status, checkpoint=checkpoint)
        if seconds is not None:
            self._write(
                "checkpoint",
                step=self._step,
                savedStep=checkpoint.step,
                savedTime=checkpoint.time,
                seconds=round(seconds, 6),
            )
        self._close_records()

    def done(self) -> None:
        """Publish that the job's result is safe."""
        self._status = replace(self._status, done=True)
        self._publish(time.monotonic())

    def close(self) -> None:
        """Publish everything; the training is over for any reason."""
        self._write_logged()
        self._publish(time.monotonic())
        self._close_records()

    def resign(self) -> None:
        """Remove the status: another process is rank 0, and this one's status is outdated."""
        self._close_records()
        if self._file is not None:
            self._errors.attempt(self._file.remove)

    def _write(self, kind: str, *, step: int, **values: Any) -> None:
        for record in self._records:
            record.append(kind, step=step, **values)

    def _close_records(self) -> None:
        for record in self._records:
            record.close()

    def _write_logged(self) -> None:
        if self._logged:
            finite = {name: v if isfinite(v) else None for name, v in self._logged.items()}
            self._write("metrics", step=self._logged_at, values=finite)
        self._logged.clear()

    def _tell_start(self, formed: float) -> None:
        """Record the first step of a group; its duration counts as start-up."""
        self._formed_at = None
        self._longest_step = 0.0
        self._write(
            "start",
            step=self._step,
            formedTime=utc_to_the_millisecond(formed),
            lastStepTime=self._last_step_time(),
        )

    def _compare(self, pace: Pace) -> None:
        before, self._straggler = self._straggler, self._watch.compare(pace)
        if self._straggler is None and before is not None:
            _logger.info("rank %d no longer holds the others up", before.rank)
        elif self._straggler is not None and (
            before is None or before.rank != self._straggler.rank
        ):
            _logger.warning("%s", self._straggler)

    def _publish(self, now: float) -> None:
        self._due = now + _INTERVAL_SECONDS
        file, status = self._file, self.status()
        if file is not None:
            self._errors.attempt(lambda: file.write(status))

    def status(self) -> Status:
        """Return what there is to publish, up to the last step."""
        self._histogram.observe(self._step_seconds)
        self._step_seconds.clear()
        trained = self._trained_seconds
        self._status = replace(
            self._status,
            step=self._step,
            last_step_time=self._last_step_time(),
            trained_seconds=round(trained, 3) if trained is not None else None,
            first_steps=self._first_steps(),
            measurements=self._measurements(),
        )
        return self._status

    def _last_step_time(self) -> str | None:
        if self._last_step_at is None:
            return self._status.last_step_time
        return utc_to_the_millisecond(self._last_step_at)

    def _first_steps(self) -> tuple[Resumption, ...] | None:
        return self._history.first_steps if self._history is not None else None

    def _measurements(self) -> Measurements:
        return Measurements(
            step_seconds=self._histogram.total,
            step_counts=tuple(self._histogram.counts),
            phase_seconds={
                phase: self._before.phase_seconds.get(phase, 0.0) + seconds
                for phase, seconds in self._timer.seconds.items()
            },
            reforms=self._reforms,
            reform_seconds=self._reform_seconds,
            straggler_ratio=self._straggler.ratio if self._straggler is not None else None,
        )
