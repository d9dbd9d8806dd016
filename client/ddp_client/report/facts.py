"""The facts of a report, as they were read: nothing here is derived or guessed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from ddp_operator.api.values.text import clean
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import MalformedError, Manifest

from ddp_client.report.history import History, read_time
from ddp_client.views.job.snapshot import JobSnapshot

_BROKEN = (MalformedError, KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class PodFacts:
    """A pod, and the times of its start."""

    state: PodState
    created: datetime | None = None
    scheduled: datetime | None = None
    started: datetime | None = None
    """When its trainer started, even if it has ended."""

    @classmethod
    def read(cls, manifest: Manifest) -> Self | None:
        """Read a pod from the API server; None if it is not a job's pod."""
        try:
            state = project(manifest)
            status = manifest.get("status") or {}
            conditions = {c["type"]: c for c in status.get("conditions") or ()}
            containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
            now: Mapping[str, Any] = containers.get(state.container, {}).get("state") or {}
            began = now.get("running") or now.get("terminated") or {}
            return cls(
                state=state,
                created=read_time(manifest["metadata"].get("creationTimestamp")),
                scheduled=_since(conditions.get("PodScheduled")),
                started=read_time(began.get("startedAt")),
            )
        except _BROKEN:
            return None

    @property
    def name(self) -> str:
        """The name of the pod object."""
        return self.state.key.name


@dataclass(frozen=True)
class EventFacts:
    """An Event of the job."""

    time: datetime
    reason: str
    message: str

    @classmethod
    def read(cls, manifest: Manifest) -> Self | None:
        """Read an Event; None if it has no time."""
        try:
            series = manifest.get("series") or {}
            last = series.get("lastObservedTime") or manifest.get("lastTimestamp")
            time = read_time(manifest.get("firstTimestamp") or last or manifest.get("eventTime"))
            if time is None:
                return None
            return cls(
                time=time,
                reason=clean(manifest.get("reason") or "", 64),
                message=clean(manifest.get("message") or ""),
            )
        except _BROKEN:
            return None


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a pod's log."""

    pod: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All facts. Missing ones are empty, and `gaps` says why."""

    job: JobSnapshot
    now: datetime
    pods: tuple[PodFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()
    history: History = field(default_factory=History)
    log: LogEnd | None = None
    """Of the pod that failed first, otherwise of rank 0's."""
    gaps: tuple[str, ...] = ()
    """Data that could not be read, in sentences."""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        now: datetime,
        pods: Iterable[PodFacts | None] = (),
        events: Iterable[EventFacts | None] = (),
        history: History | None = None,
        log: LogEnd | None = None,
        gaps: Iterable[str] = (),
    ) -> Self:
        """Read a job from the API server; no content raises an error.

        Pods of an earlier job with the same name, and objects that cannot be read, are left out.
        """
        job = JobSnapshot.read(manifest)
        readable = [event for event in events if event is not None]
        return cls(
            job=job,
            now=now,
            pods=tuple(pod for pod in pods if pod and pod.state.owner_uid == job.uid),
            events=tuple(sorted(readable, key=lambda event: event.time)),
            history=history or History(),
            log=log,
            gaps=tuple(gaps),
        )


def _since(condition: Mapping[str, Any] | None) -> datetime | None:
    if condition is None or condition.get("status") != "True":
        return None
    return read_time(condition.get("lastTransitionTime"))
