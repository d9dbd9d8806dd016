"""Metrics of the operator itself."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, get_args

from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.metrics.exposition import Labels, head, line
from ddp_operator.engine.metrics.totals import Totals
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.status.goodput import down_since, is_down

_RECONCILE_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0)
"""Planning takes one or two milliseconds, a gang of hundreds of pods a second."""
_RECOVERY_SECONDS: Final = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
"""Replacing a pod on a node that has its image takes seconds; a new cloud node takes minutes."""

_MAX_REASONS: Final = 100
"""Failure reasons that are counted separately; Kubernetes has a few dozen."""
_OTHER: Final = "Other"

_HANGS: Final[Sequence[Labels]] = tuple(
    (("class", name), ("reason", NO_PROGRESS)) for name in ("Application", "Infrastructure")
)


_HELP: Final = {
    "jobs": "DDPJobs by phase.",
    "newer_jobs": "DDPJobs with a spec that only a newer operator reads; it does not apply yet.",
    "left_out_jobs": "DDPJobs without their own metrics, because there are more than "
    "--metrics-jobs.",
    "job_seconds": "How the present DDPJobs spent their age, in seconds.",
    "oldest_step_timestamp_seconds": "Last step of the running training that has waited longest "
    "for the next.",
    "oldest_checkpoint_timestamp_seconds": "Last checkpoint of the running training that has "
    "waited longest for the next.",
    "restarts_total": "Restarts by class of failure.",
    "restarts_without_progress_total": "Restarts by class, without a later checkpoint than at the "
    "restart before.",
    "failures_total": "Failures by class and reason.",
    "queue_length": "Jobs that wait for a worker.",
    "api_errors_total": "Requests that the API server refused or did not answer, by status code or "
    "none.",
    "leader": "1 if this replica acts.",
    "crd_lost_fields": "Fields and words that the installed, older CRD does not have.",
    "crd_unknown_fields": "Fields and words of the installed, newer CRD that the operator does not "
    "have.",
}
"""Help text of each gauge and, with a name that ends in `_total`, of each counter."""


class _Histogram:
    """Seconds, counted by their upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._sum += seconds
        self._counts[sum(seconds > bound for bound in self._bounds)] += 1

    def lines(self, name: str, help_text: str) -> Iterable[str]:
        full = f"ddp_operator_{name}"
        yield from head(full, "histogram", help_text)
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            yield line(f"{full}_bucket", (("le", label),), total)
        yield line(f"{full}_sum", (), self._sum)
        yield line(f"{full}_count", (), total)


class Metrics:
    """Counts since the start of this process."""

    def __init__(self) -> None:
        # Counters start with zeros: Prometheus sees no increase in a counter that begins with its
        # first count.
        classes = {(("class", name),): 0 for name in get_args(FailureClass)}
        self._restarts = Counter[Labels](classes)
        self._restarts_without_progress = Counter[Labels](classes)
        self._failures = Counter[Labels](dict.fromkeys(_HANGS, 0))
        self._reasons = {NO_PROGRESS}
        self._reconciles = _Histogram(_RECONCILE_SECONDS)
        self._recoveries = _Histogram(_RECOVERY_SECONDS)
        self.lost_fields: frozenset[str] = frozenset()
        """Fields and words that the server's older CRD does not have."""
        self.unknown_fields: frozenset[str] = frozenset()
        """Fields and words of the server's newer CRD that this operator does not have."""
        self.api_errors: Mapping[str, int] = {}
        """Failed requests to the API server, by status code."""

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        """Measure one reconcile, also if it fails."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._reconciles.observe(time.monotonic() - begin)

    def recorded(self, *, before: DDPJobStatus, after: DDPJobStatus) -> None:
        """Count the decisions in a status that has just been stored."""
        if (seconds := _recovery_seconds(before, after)) is not None:
            self._recoveries.observe(seconds)
        if not after.failures or after.failures == before.failures:
            return
        failure = after.failures[-1]
        if failure.reason not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.add(failure.reason)
        reason = failure.reason if failure.reason in self._reasons else _OTHER
        self._failures[(("class", failure.class_), ("reason", reason))] += 1
        if after.incarnation != before.incarnation:
            labels = (("class", failure.class_),)
            self._restarts[labels] += 1
            notes = after.bookkeeping
            in_vain = max(
                notes.restarts_in_a_row or 0,
                notes.restarts_without_progress,
                notes.node_failures_without_progress,
            )
            if in_vain > 1:
                self._restarts_without_progress[labels] += 1

    def text(self, totals: Totals, *, queued: int, leading: bool, left_out: int = 0) -> str:
        """Return all metrics as text, with the present jobs, the length of the queue, whether this
        replica acts, and how many jobs have no metrics of their own.
        """
        samples: dict[str, Mapping[Labels, float]] = {
            "jobs": _by("phase", totals.phases),
            "newer_jobs": {(): totals.newer_jobs},
            "left_out_jobs": {(): left_out},
            "job_seconds": _by("kind", totals.seconds),
            "oldest_step_timestamp_seconds": _at(totals.oldest_step),
            "oldest_checkpoint_timestamp_seconds": _at(totals.oldest_checkpoint),
            "restarts_total": self._restarts,
            "restarts_without_progress_total": self._restarts_without_progress,
            "failures_total": self._failures,
            "queue_length": {(): queued},
            "api_errors_total": _by("code", self.api_errors),
            "leader": {(): int(leading)},
            "crd_lost_fields": {(): len(self.lost_fields)},
            "crd_unknown_fields": {(): len(self.unknown_fields)},
        }
        families = (
            *(_family(name, help_text, samples[name]) for name, help_text in _HELP.items()),
            self._reconciles.lines("reconcile_duration_seconds", "Time of one reconcile of a job."),
            self._recoveries.lines(
                "recovery_duration_seconds",
                "From a restart until training continued: a step, or else all pods ready.",
            ),
        )
        return "".join(f"{line}\n" for family in families for line in family)


def _recovery_seconds(before: DDPJobStatus, after: DDPJobStatus) -> float | None:
    """Return how long the last recovery took, if training has just resumed."""
    told = after.progress
    if told is not None and told.last_step_time is not None:
        since = down_since(before)
        if since is None or is_down(after):
            return None
        return (told.last_step_time - since).total_seconds()
    watch, was = after.bookkeeping.stopwatch, before.bookkeeping.stopwatch
    if watch is None or was is None or (before.phase, after.phase) != ("Restarting", "Running"):
        return None
    return (watch.accounted_until - was.accounted_until).total_seconds()


def _at(time_: datetime | None) -> dict[Labels, float]:
    """Return no sample for an unknown time: any number would be wrong."""
    return {} if time_ is None else {(): time_.timestamp()}


def _by(label: str, counts: Mapping[str, int]) -> dict[Labels, int]:
    return {((label, value),): count for value, count in counts.items()}


def _family(name: str, help_text: str, samples: Mapping[Labels, float]) -> Iterable[str]:
    full, kind = f"ddp_operator_{name}", "counter" if name.endswith("_total") else "gauge"
    return [
        *head(full, kind, help_text),
        *(line(full, labels, samples[labels]) for labels in sorted(samples)),
    ]
