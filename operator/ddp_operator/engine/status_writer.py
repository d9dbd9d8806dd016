"""Writes the statuses of jobs: when, how much of them, and the Events that go with them."""

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
from ddp_operator.engine.statuspatch import News, as_stored, forgotten, news, pruned, status_patch
from ddp_operator.job.planning.convergence import hold
from ddp_operator.job.planning.model import Plan, accounted
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
"""Status changes that nobody waits for, such as 5 ready pods after 4, are written this far
apart.
"""

PROGRESS_WRITES_PER_SECOND: Final = 50.0
"""Status writes that tell of nothing but progress, of all jobs together: with more than 500 that
train each has its progress written less often than every ten seconds."""

_STORED_WHOLE_AGAIN: Final = timedelta(seconds=60)
"""Until a decision is tried again that the CRD would not store whole."""

_MOST_FIELDS: Final = 60
"""Characters of the names of fields that the CRD does not keep."""


class StatusWriter:
    """Stores what plans say of jobs, and puts the answers into the cache of jobs.

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
        self._undecided_until: dict[Key, datetime] = {}
        """By job: until when no decision is tried, since the last one was not stored whole."""
        self._progress_limiter = RateLimiter(per_second=progress_writes_per_second)
        self._intervals = {
            News.PROGRESS: timedelta(seconds=progress_seconds),
            News.COUNTS: _MINOR_INTERVAL,
        }

    def forget(self, key: Key) -> None:
        """Drop the notes about a job that is gone."""
        self._undecided_until.pop(key, None)

    async def decide(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
        """Store a decision, and say what has happened; return when to try it again, where it was
        not stored whole.
        """
        until = self._undecided_until.get(key)
        if until is not None and self._clock() < until <= self._clock() + _STORED_WHOLE_AGAIN:
            return until
        answer = await self._store(key, entry, planned.status)
        if answer is None:
            return None
        if isinstance(entry.job, DDPJob):
            stored = DDPJobStatus.model_validate(answer.get("status") or {})
            lost = forgotten(planned.status, stored)
            if lost and not stored.finished:  # else nothing is left to be decided by it
                partly = Entry.of(answer, replace(entry.job, status=stored))
                return await self._take_back(entry.job, partly, lost)
        self._undecided_until.pop(key, None)
        await self._tell(entry, planned.status, planned.events)
        return None

    async def _take_back(self, job: DDPJob, partly: Entry, lost: frozenset[str]) -> datetime:
        """Undo a decision about a job that was stored in part: it would be made again, and charged
        again, for ever.
        """
        now = self._clock()
        fields = ", ".join(f"status.{name}" for name in sorted(lost))[:_MOST_FIELDS]
        message = (
            f"the CRD does not keep {fields}: apply the CRD of the operator's release, "
            f"{__version__} (crds/ddpjobs.yaml); until then nothing is decided for this job"
        )
        held = accounted(job, hold(job, STATUS_NOT_STORED, message, now), now)
        until = self._undecided_until[job.key] = now + _STORED_WHOLE_AGAIN
        if await self._store(job.key, partly, held.status) is not None:
            await self.emit(partly, held.events)
        return until

    def may_wait_until(self, entry: Entry, status: DDPJobStatus) -> datetime | None:
        """Until when news may wait; None for news that may not, or may no longer, or for none."""
        if not isinstance(entry.job, DDPJob) or status == entry.job.status:
            return None
        how_much = news(entry.job.status, status)
        interval = self._intervals.get(how_much, timedelta())
        now = self._clock()
        # A clock that was set back must not make news wait for as long.
        if timedelta() <= now - entry.status_written_at < interval:
            return entry.status_written_at + interval
        wait = how_much is News.PROGRESS and self._progress_limiter.wait_seconds(entry.job.key)
        return now + timedelta(seconds=wait) if wait else None

    async def record(
        self, key: Key, entry: Entry, status: DDPJobStatus, events: Iterable[Event]
    ) -> None:
        """Write a status, if it differs from the stored one, then tell what has happened.

        Raises:
            ConflictError: the job has changed since this reconcile began; it must be planned anew.
        """
        if await self._store(key, entry, status) is not None:
            await self._tell(entry, status, events)

    async def _store(self, key: Key, entry: Entry, status: DDPJobStatus) -> Manifest | None:
        """Write a status, if it differs from the stored one; return the job as stored, None where
        it is gone.

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
            # Pods created for what the job was would be wrong for what it has become.
            self._jobs.doubt(key)
            raise
        except NotFoundError:
            self._jobs.remove(key, uid=entry.uid)
            return None  # of a job that is gone, its vanishing pods included, there is no news
        self._jobs.put(stored, written_at=self._clock())
        self._complain(pruned(wanted, stored.get("status") or {}))
        self._progress_limiter.reset(key)
        return stored

    def _complain(self, lost: frozenset[str]) -> None:
        """Say, once, that the CRD is older than this operator, unless its start has said so."""
        if new := {f"status.{name}" for name in lost} - self._metrics.lost_fields:
            self._metrics.lost_fields |= new
            logger.error(
                "the CRD is older than this operator and drops what it must remember (%s): "
                "apply the CRD of this release, %s",
                ", ".join(sorted(new)),
                __version__,
            )

    async def read(self, key: Key, entry: Entry) -> None:
        """Learn what is stored, when a write has left that open."""
        try:
            # A patch of nothing changes nothing, and is answered with the whole job.
            stored = await self._cluster.patch_status(key, {}, resource_version=None)
        except NotFoundError:
            self._jobs.remove(key, uid=entry.uid)
        else:
            self._jobs.read(stored, knowing=entry)

    async def _tell(self, entry: Entry, status: DDPJobStatus, events: Iterable[Event]) -> None:
        """Count, and say, what a status that is stored brings."""
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
