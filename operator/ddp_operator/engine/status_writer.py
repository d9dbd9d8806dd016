"""Writes the statuses of jobs and posts their Events: when, and how much of them."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator import __version__
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.rate_limit import RateLimiter
from ddp_operator.engine.status_patch import News, as_stored, forgotten, news, pruned, status_patch
from ddp_operator.job.planning.convergence import report_refusal
from ddp_operator.job.planning.model import Plan, with_goodput
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import STATUS_NOT_STORED
from ddp_operator.ports import (
    Cluster,
    ConflictError,
    Event,
    Key,
    Manifest,
    NotFoundError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_MINOR_INTERVAL: Final = timedelta(seconds=2)
"""Shortest time between status writes that nobody waits for, such as 5 ready pods after 4."""

PROGRESS_WRITES_PER_SECOND: Final = 50.0
"""Status writes of all jobs together that contain only progress. With more than 500 training jobs,
each job's progress is written less often than every ten seconds."""

_DECISION_RETRY: Final = timedelta(seconds=60)
"""How long to wait before retrying a decision that the CRD did not store completely."""

_MOST_FIELDS: Final = 60
"""Characters in a message for the names of fields that the CRD does not keep."""


class StatusWriter:
    """Stores the statuses that plans make, and puts the responses into the job cache.

    At most `progress_writes_per_second` writes, of all jobs together, contain only progress.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        *,
        clock: Callable[[], datetime],
        metrics: Metrics,
        progress_seconds: float,
        progress_writes_per_second: float,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._clock = clock
        self._metrics = metrics
        self._retry_decision_at: dict[Key, datetime] = {}
        """By job: no decision is tried before this time, because the last one was not stored
        completely."""
        self._progress_limiter = RateLimiter(per_second=progress_writes_per_second)
        self._intervals = {
            News.PROGRESS: timedelta(seconds=progress_seconds),
            News.COUNTS: _MINOR_INTERVAL,
        }

    def forget(self, key: Key) -> None:
        """Forget a job that is gone."""
        self._retry_decision_at.pop(key, None)

    async def decide(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
        """Store a decision and report what has happened. If it was not stored completely, return
        when to retry.
        """
        until = self._retry_decision_at.get(key)
        if until is not None and self._clock() < until <= self._clock() + _DECISION_RETRY:
            return until
        answer = await self._store(key, entry, planned.status)
        if answer is None:
            return None
        if isinstance(entry.job, DDPJob):
            stored = DDPJobStatus.model_validate(answer.get("status") or {})
            lost = forgotten(planned.status, stored)
            if lost and not stored.finished:  # a finished job needs no further decision
                partly = Entry.of(answer, replace(entry.job, status=stored))
                return await self._undo(entry.job, partly, lost)
        self._retry_decision_at.pop(key, None)
        await self._report(entry, planned.status, planned.events)
        return None

    async def _undo(self, job: DDPJob, partly: Entry, lost: frozenset[str]) -> datetime:
        """Undo a decision that was stored only in part. Otherwise it would be made, and charged,
        forever.
        """
        now = self._clock()
        fields = ", ".join(f"status.{name}" for name in sorted(lost))[:_MOST_FIELDS]
        message = (
            f"the CRD does not keep {fields}: apply the CRD of the operator's release, "
            f"{__version__} (crds/ddpjobs.yaml); until then nothing is decided for this job"
        )
        held = with_goodput(job, report_refusal(job, STATUS_NOT_STORED, message, now), now)
        until = self._retry_decision_at[job.key] = now + _DECISION_RETRY
        if await self._store(job.key, partly, held.status) is not None:
            await self.emit(partly, held.events)
        return until

    def deferred_until(self, entry: Entry, status: DDPJobStatus) -> datetime | None:
        """Return until when a status change may wait, or None if it may not wait or nothing has
        changed.
        """
        if not isinstance(entry.job, DDPJob) or status == entry.job.status:
            return None
        how_much = news(entry.job.status, status)
        interval = self._intervals.get(how_much, timedelta())
        now = self._clock()
        # A clock that was set back must not make the change wait for as long.
        if timedelta() <= now - entry.status_written_at < interval:
            return entry.status_written_at + interval
        wait = how_much is News.PROGRESS and self._progress_limiter.wait_seconds(entry.job.key)
        return now + timedelta(seconds=wait) if wait else None

    async def record(
        self, key: Key, entry: Entry, status: DDPJobStatus, events: Iterable[Event]
    ) -> None:
        """Write a status if it differs from the stored one, then report what has happened.

        Raises:
            ConflictError: the job has changed since this reconcile began; plan it again.
        """
        if await self._store(key, entry, status) is not None:
            await self._report(entry, status, events)

    async def _store(self, key: Key, entry: Entry, status: DDPJobStatus) -> Manifest | None:
        """Write a status if it differs from the stored one. Return the stored job, or None if it is
        gone.

        Raises:
            ConflictError: as `record` does.
        """
        if isinstance(entry.job, DDPJob) and status == entry.job.status:
            return entry.manifest
        known, wanted = entry.manifest, as_stored(status)
        patch = status_patch(known.get("status") or {}, wanted)
        if not patch:
            return known
        version = entry.version or None
        try:
            stored = await self._cluster.patch_status(key, patch, resource_version=version)
        except (ConflictError, UnavailableError):
            # Pods that were created for the job's old state would be wrong for the new one.
            self._jobs.doubt(key)
            raise
        except NotFoundError:
            self._jobs.remove(key, uid=entry.uid)
            return None  # a job that is gone has no news, nor do its vanishing pods
        self._jobs.put(stored, written_at=self._clock())
        self._log_lost_fields(pruned(wanted, stored.get("status") or {}))
        self._progress_limiter.reset(key)
        return stored

    def _log_lost_fields(self, lost: frozenset[str]) -> None:
        """Log once that the CRD is older than this operator, unless the operator's start has logged
        it.
        """
        if new := {f"status.{name}" for name in lost} - self._metrics.lost_fields:
            self._metrics.lost_fields |= new
            logger.error(
                "the CRD is older than this operator and drops fields that it needs (%s): "
                "apply the CRD of this release, %s",
                ", ".join(sorted(new)),
                __version__,
            )

    async def read(self, key: Key, entry: Entry) -> None:
        """Read the stored job after a write with an unknown outcome."""
        try:
            # An empty patch changes nothing, and the response has the whole job.
            stored = await self._cluster.patch_status(key, {}, resource_version=None)
        except NotFoundError:
            self._jobs.remove(key, uid=entry.uid)
        else:
            self._jobs.read(stored, knowing=entry)

    async def _report(self, entry: Entry, status: DDPJobStatus, events: Iterable[Event]) -> None:
        """Count and report the changes of a stored status."""
        if isinstance(entry.job, DDPJob) and status != entry.job.status:
            self._metrics.recorded(before=entry.job.status, after=status)
        await self.emit(entry, events)

    async def emit(self, entry: Entry, events: Iterable[Event]) -> None:
        """Log events, and post them as Events of the job."""
        for event in events:
            about = entry.manifest
            metadata = about["metadata"]
            logger.info(
                "%s/%s: %s: %s",
                metadata["namespace"],
                metadata["name"],
                event.reason,
                event.message,
            )
            await self._cluster.emit_event(about, event)
