"""What the operator counts about itself, as Prometheus' text (exposition format 0.0.4)."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ddp_operator.api.status import DDPJobStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0)
"""Seconds: planning alone takes one or two milliseconds, a gang of hundreds of pods a second."""

_MAX_REASONS: Final = 100
"""Reasons of failures, of which Kubernetes knows a few dozen, that are counted apart."""
_OTHER: Final = "Other"

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts from the start of this process on."""

    def __init__(self) -> None:
        self._restarts: Counter[Labels] = Counter()
        self._restarts_without_progress: Counter[Labels] = Counter()
        self._failures: Counter[Labels] = Counter()
        self._reasons: set[str] = set()
        self._buckets = [0] * (len(_BUCKETS) + 1)
        self._reconciling_seconds = 0.0
        self.lost_fields: frozenset[str] = frozenset()
        """Fields and words that the server's CRD, which is older, does not know."""
        self.unknown_fields: frozenset[str] = frozenset()
        """Fields and words of the server's CRD, which is newer, unknown to this operator."""
        self.api_errors: Mapping[str, int] = {}
        """Requests to the API server that failed, by status code."""

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        """Measure one reconcile, be it one that fails."""
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            self._reconciling_seconds += seconds
            self._buckets[sum(seconds > bound for bound in _BUCKETS)] += 1

    def recorded(self, *, before: DDPJobStatus, after: DDPJobStatus) -> None:
        """Count what a status that has just been stored decides."""
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
            if max(notes.restarts_without_progress, notes.node_failures_without_progress) > 1:
                self._restarts_without_progress[labels] += 1

    def text(self, *, jobs: Mapping[str, int], newer_jobs: int, queued: int, leading: bool) -> str:
        """Write all of it down, with the present number of jobs in each phase, of those that only
        a newer operator understands, of names that wait for work, and whether this replica acts.
        """
        reconciles = sum(self._buckets)
        name = "ddp_operator_reconcile_duration_seconds"
        cumulated = [sum(self._buckets[: i + 1]) for i in range(len(_BUCKETS))]
        histogram = [
            *(
                _line(f"{name}_bucket", (("le", f"{bound:g}"),), count)
                for bound, count in zip(_BUCKETS, cumulated, strict=True)
            ),
            _line(f"{name}_bucket", (("le", "+Inf"),), reconciles),
            _line(f"{name}_sum", (), self._reconciling_seconds),
            _line(f"{name}_count", (), reconciles),
        ]
        families = (
            _family("jobs", "gauge", "DDPJobs by phase.", _by("phase", jobs)),
            _family(
                "newer_jobs",
                "gauge",
                "DDPJobs that only a newer operator understands, left as they are; in no phase.",
                {(): newer_jobs},
            ),
            _family("restarts_total", "counter", "Restarts by class of failure.", self._restarts),
            _family(
                "restarts_without_progress_total",
                "counter",
                "Restarts by class, for which no checkpoint is later than at the one before.",
                self._restarts_without_progress,
            ),
            _family("failures_total", "counter", "Failures by class, reason.", self._failures),
            _family("queue_length", "gauge", "Jobs that wait for a worker.", {(): queued}),
            _family(
                "api_errors_total",
                "counter",
                "Requests that the API server refused or did not answer, by status code or none.",
                _by("code", self.api_errors),
            ),
            _family("leader", "gauge", "1 where this replica acts.", {(): int(leading)}),
            _family(
                "crd_lost_fields",
                "gauge",
                "Fields and words that the installed CRD, which is older, does not know.",
                {(): len(self.lost_fields)},
            ),
            _family(
                "crd_unknown_fields",
                "gauge",
                "Fields and words of the installed CRD, which is newer, unknown to the operator.",
                {(): len(self.unknown_fields)},
            ),
            _head(name, "histogram", "Time of one look at one job."),
            histogram,
        )
        return "".join(f"{line}\n" for family in families for line in family)


def _by(label: str, counts: Mapping[str, int]) -> dict[Labels, int]:
    return {((label, value),): count for value, count in counts.items()}


def _family(name: str, kind: str, help_text: str, samples: Mapping[Labels, int]) -> Iterable[str]:
    full = f"ddp_operator_{name}"
    return [
        *_head(full, kind, help_text),
        *(_line(full, labels, samples[labels]) for labels in sorted(samples)),
    ]


def _head(name: str, kind: str, help_text: str) -> Iterable[str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
