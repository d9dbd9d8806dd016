"""Writes the statuses of jobs and posts their Events: when, and how much of them."""

import asyncio
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
from ddp_operator.engine.status_patch import News, as_stored, forgotten, news, status_patch
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    Cluster,
    ClusterError,
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
_UNUSED_SECONDS: Final = 60.0
"""How long a slot is kept that no job uses, since the job is gone."""


class RateLimiter:
    """Gives jobs slots in the order in which they ask, at most `per_second` of them each second.

    Belongs to the event loop that it is used in.
    """

    def __init__(self, *, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._next = float("-inf")
        self._reserved: dict[Key, float] = {}  # ordered by time

    def wait_seconds(self, key: Key) -> float:
        """Return how long a job must wait for its slot; 0.0 if it may write now.

        The first call reserves the slot. It stays the job's until `reset`.
        """
        now = asyncio.get_running_loop().time()
        slot = self._reserved.get(key)
        if slot is None:
            self._forget_unused(now)
            slot = self._reserved[key] = max(self._next, now)
            self._next = slot + self._seconds
        return max(slot - now, 0.0)

    def reset(self, key: Key) -> None:
        """Release the slot of a job that has written: its next write reserves another one."""
        self._reserved.pop(key, None)

    def _forget_unused(self, now: float) -> None:
        while self._reserved:
            oldest = next(iter(self._reserved))
            if self._reserved[oldest] + _UNUSED_SECONDS > now:
                return
            del self._reserved[oldest]


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
        self._progress_limiter = RateLimiter(per_second=progress_writes_per_second)
        self._intervals = {
            News.PROGRESS: timedelta(seconds=progress_seconds),
            News.COUNTS: _MINOR_INTERVAL,
        }

    async def decide(self, key: Key, entry: Entry, planned: Plan) -> None:
        """Store a decision and report what has happened.

        Raises:
            ConflictError: as `record` does.
            ClusterError: the CRD did not store all of it.
        """
        answer = await self._store(key, entry, planned.status)
        if answer is None:
            return
        if isinstance(entry.job, DDPJob):
            stored = DDPJobStatus.model_validate(answer.get("status") or {})
            lost = forgotten(planned.status, stored)
            if lost and not stored.finished:  # a finished job needs no further decision
                # Otherwise the decision would be made, and charged, again and again.
                partly = Entry.of(answer, replace(entry.job, status=stored))
                await self._store(key, partly, entry.job.status)
                raise ClusterError(
                    f"the CRD does not store {some(sorted(lost))}: apply the CRD of this release, "
                    f"{__version__} (crds/ddpjobs.yaml)"
                )
        await self._report(entry, planned.status, planned.events)

    def deferred_until(self, entry: Entry, status: DDPJobStatus) -> datetime | None:
        """Return until when a status change may wait, or None if it may not wait or nothing has
        changed.
        """
        if not isinstance(entry.outline, DDPJob) or status == entry.outline.status:
            return None
        how_much = news(entry.outline.status, status)
        interval = self._intervals.get(how_much, timedelta())
        now = self._clock()
        # A clock that was set back must not make the change wait for as long.
        if timedelta() <= now - entry.status_written_at < interval:
            return entry.status_written_at + interval
        wait = how_much is News.PROGRESS and self._progress_limiter.wait_seconds(entry.outline.key)
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
        if isinstance(entry.outline, DDPJob) and status == entry.outline.status:
            return entry.manifest
        known = entry.manifest
        patch = status_patch(known.get("status") or {}, as_stored(status))
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
        self._progress_limiter.reset(key)
        return stored

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
        if isinstance(entry.outline, DDPJob) and status != entry.outline.status:
            self._metrics.recorded(before=entry.outline.status, after=status)
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
