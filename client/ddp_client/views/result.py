"""The result of a job: its last numbers, best score, newest checkpoint and curve.

All comes from the job itself, so it is there after the pods are gone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from ddp_operator.api.values.text import clean
from ddp_operator.job.status import curve
from ddp_operator.job.status.curve import Row

from ddp_client.text import facts, number
from ddp_client.views.curve import POINTS
from ddp_client.views.curve import curve as sparkline
from ddp_client.views.job.last_words import readable
from ddp_client.views.job.pace import ago
from ddp_client.views.job.snapshot import JobSnapshot


@dataclass(frozen=True)
class Score:
    """A score of the model, usually an accuracy; higher is better."""

    step: int
    value: float


@dataclass(frozen=True)
class SavedCheckpoint:
    """The newest checkpoint that the trainer reported."""

    step: int
    path: str
    """Where the pods saw it; empty if unknown."""
    time: datetime | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a job until now; None: not reported."""

    name: str
    namespace: str
    phase: str
    reason: str
    message: str
    step: int | None
    total_steps: int | None
    epoch: int | None
    loss: float | None
    accuracy: float | None
    """The newest score that the training reported."""
    metrics: Mapping[str, float]
    """The newest values of the script's own metrics."""
    best: Score | None
    """The best score of the curve."""
    checkpoint: SavedCheckpoint | None
    rows: Sequence[Row]
    """The curve: step, loss and accuracy."""

    @classmethod
    def of(cls, job: JobSnapshot, rows: Sequence[Row] | None = None) -> Self:
        """Read the result from a job. `rows`: a curve with more steps than the job's own."""
        status = job.status
        progress, saved, notes = status.progress, status.checkpoint, status.bookkeeping
        if rows is None:  # without progress, the curve is that of code which was replaced
            rows = curve.rows(notes.curve) if progress else ()
        losses = [row.loss for row in rows if row.loss is not None]
        scores = [row.accuracy for row in rows if row.accuracy is not None]
        best = curve.best(rows)
        loss = progress.loss if progress else None
        return cls(
            name=clean(job.name, 253),
            namespace=clean(job.key.namespace, 253),
            phase=status.phase,
            reason=clean(status.reason, 64),
            message=clean(readable(status.message, succeeded=status.phase == "Succeeded")),
            step=progress.step if progress else rows[-1].step if rows else None,
            total_steps=progress.total_steps if progress else None,
            epoch=progress.epoch if progress else None,
            loss=loss if loss is not None else losses[-1] if losses else None,
            accuracy=scores[-1] if scores else None,
            metrics={clean(name, 63): value for name, value in notes.metrics.items()},
            best=Score(best.step, best.accuracy) if best and best.accuracy is not None else None,
            checkpoint=(
                SavedCheckpoint(saved.step, clean(saved.path, 1024), saved.time) if saved else None
            ),
            rows=rows,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a row of the curve is an object."""
        plain = {**asdict(self), "rows": [row._asdict() for row in self.rows]}
        if self.checkpoint is not None and self.checkpoint.time is not None:
            time = self.checkpoint.time.astimezone(UTC)
            plain["checkpoint"]["time"] = f"{time:%Y-%m-%dT%H:%M:%SZ}"
        return plain

    def lines(self, now: datetime, width: int) -> list[str]:
        """Return the result as lines for a terminal."""
        return [
            f"{self.name} in namespace {self.namespace}",
            "",
            *facts(self._facts(now), width),
        ]

    def _facts(self, now: datetime) -> Iterator[tuple[str, str]]:
        yield "state", self.phase
        if self.reason:
            yield "reason", f"{self.reason}: {self.message}".rstrip(": ")
        if self.step is not None:
            of = f" of {self.total_steps}" if self.total_steps else ""
            yield "step", f"{self.step}{of}" + (f", epoch {self.epoch}" if self.epoch else "")
        if line := _line(self.rows, lambda row: row.loss, self.loss, number):
            yield "loss", line
        if line := _line(self.rows, lambda row: row.accuracy, self.accuracy, score):
            yield "accuracy", line
        if self.best is not None:
            yield "best", f"{score(self.best.value)} at step {self.best.step}"
        if self.metrics:
            named = (f"{name} {number(value)}" for name, value in self.metrics.items())
            yield "metrics", ", ".join(named)
        if self.checkpoint is not None:
            age, path = ago(self.checkpoint.time, now), self.checkpoint.path
            yield "checkpoint", f"step {self.checkpoint.step}{age}" + (f", {path}" if path else "")
        if not self.rows and self.loss is None:
            yield "", "the trainer reported no loss and no accuracy"


def score(value: float) -> str:
    """Return a score as text: a share in percent, any other number as it is."""
    return f"{value:.1%}" if 0 <= value <= 1 else number(value)


def _line(
    rows: Sequence[Row],
    value_of: Callable[[Row], float | None],
    last: float | None,
    text: Callable[[float], str],
) -> str:
    """Return a line such as `2.1 ▇▅▃▂▁▁ 0.12`; only the last value, if there is one value."""
    points = [(row.step, value) for row in rows if (value := value_of(row)) is not None]
    if len(points) < 2:
        return "" if last is None else text(last)
    if last is None:
        last = points[-1][1]
    return f"{text(points[0][1])} {sparkline(_even(points))} {text(last)}"


def _even(points: Sequence[tuple[int, float]]) -> list[float]:
    """Return the values at even distances of steps."""
    size = min(len(points), POINTS)
    first, length = points[0][0], points[-1][0] - points[0][0]
    values, at = list[float](), 0
    for column in range(size):
        step = first + math.ceil(length * column / (size - 1))
        while at + 1 < len(points) and points[at + 1][0] <= step:
            at += 1
        values.append(points[at][1])
    return values
