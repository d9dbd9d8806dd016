"""Polls the trainers of running jobs for progress, or reads it from their pods' logs, and keeps the
last report of each.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_protocol.message import InvalidMessageError
from ddp_protocol.progress import TrainerStatus

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.spec import ProgressSource
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.queue import WorkQueue
from ddp_operator.engine.trainers import log_progress
from ddp_operator.engine.trainers.trainers import NOTHING_YET, Trainers
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.goodput import is_down
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Cluster, ClusterError, Key

logger = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 10.0
"""How often a running job's trainer is polled, and at most how often its progress is written."""

_AT_ONCE: Final = 64
"""Trainers polled at the same time. Each answers in milliseconds, or not within two seconds."""
_LOGS_AT_ONCE: Final = 8
"""Logs read at the same time, of the shared connections to the API server."""
_LOG_SECONDS: Final = 2.0
"""Shortest time between two reads of a log."""
_RECOVERY_SECONDS: Final = 0.5
"""How often a trainer is polled after a failure, until it completes a step."""
_JITTER: Final = 0.1
"""Each wait varies by up to this fraction, so that jobs that start together drift apart."""


class _Trainer(NamedTuple):
    """Where a job's progress comes from."""

    job_uid: str
    pod: PodState
    log: ProgressSource | None
    """How its log tells the progress, if it does."""


class ProgressReports:
    """Last reports of the trainers of running jobs. `watch` says of a job that it may have changed,
    and `run` keeps polling those of which a pod can answer. The others cost nothing.

    `on_report` is called for a job after a report. Silence is not a failure: the last report stays.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        trainers: Trainers,
        *,
        interval_seconds: float,
        clock: Callable[[], datetime],
        on_report: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._trainers = trainers
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._on_report = on_report
        self._reports: dict[Key, Report] = {}
        self._heard_at: dict[Key, float] = {}
        self._read_at: dict[Key, float] = {}
        """When a job's log was last read."""
        self._troubles: dict[Key, str] = {}
        self._watched: set[Key] = set()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._log_slots = asyncio.Semaphore(_LOGS_AT_ONCE)

    def of(self, job: Key) -> Report | None:
        """Return the trainer's last report, or None before the first one."""
        return self._reports.get(job)

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            async with asyncio.TaskGroup() as polls:
                while True:
                    polls.create_task(self._poll(await self._queue.get()))
        finally:
            self._queue.close()

    def watch(self, key: Key) -> None:
        """Poll a job's trainer from now on, sooner after a failure; or forget a job that does not
        train any more.
        """
        wait = self._seconds_to_next(key)
        if wait is None:
            self._forget(key)
        elif key not in self._watched:
            # Jobs that start together drift apart.
            self._watched.add(key)
            self._queue.add_after(key, random.uniform(0, wait))
        elif wait < self._interval_seconds:
            self._queue.add_after(key, wait)

    def _seconds_to_next(self, key: Key) -> float | None:
        """Return how long a job waits for its next poll, or None if nothing of it trains."""
        entry = self._jobs.get(key)
        job = entry.outline if entry else None
        if not isinstance(job, DDPJob) or not _may_train(job):
            return None
        if is_down(job.status):  # no step since the last failure
            return min(_RECOVERY_SECONDS, self._interval_seconds)
        return self._interval_seconds

    def _forget(self, key: Key) -> None:
        self._watched.discard(key)
        for known in (self._troubles, self._reports, self._heard_at, self._read_at):
            known.pop(key, None)

    async def _poll(self, key: Key) -> None:
        trainer = None
        try:
            if (trainer := self._trainer_of(key)) is not None:
                await self._ask(key, trainer)
        except Exception:
            # One job must never stop the others. This one is polled again when it is due.
            logger.exception("%s: polling for progress failed", key)
        finally:
            self._queue.done(key)
        wait = self._seconds_to_next(key)
        if wait is None:
            self._forget(key)
        elif trainer is None:
            self._watched.discard(key)  # until an event of its pods
        else:
            self._queue.add_after(key, wait * random.uniform(1 - _JITTER, 1 + _JITTER))

    def _trainer_of(self, key: Key) -> _Trainer | None:
        """Return the job's pod 0 if it can answer, or its log can."""
        entry = self._jobs.get(key)
        job = entry.outline if entry else None
        if entry is None or not isinstance(job, DDPJob):
            return None
        pod = observe(job, self._cluster.pods_of(key)).current.get(0)
        if pod is None or not pod.ready or pod.exit or pod.deleting:
            return None
        source = job.spec.progress
        can_answer = pod.address or source is not None
        return _Trainer(entry.uid, pod, source) if can_answer else None

    async def _ask(self, key: Key, trainer: _Trainer) -> None:
        job_uid, pod, source = trainer
        said = await self._status_of(pod) if pod.address else None
        if source is not None and not isinstance(said, TrainerStatus):
            if not self._may_read_log(key):
                return
            said = await self._read(pod, source.log_pattern)
        if isinstance(said, TrainerStatus):
            self._note(key, "")
            heard_at = self._clock()
            self._keep(key, Report(job_uid, pod.identity, said, heard_at, heard_at))
        elif said is not None:
            self._note(key, said)
            if said.endswith(NOTHING_YET):
                heard_at = self._clock()
                self._keep(key, Report(job_uid, pod.identity, None, heard_at, heard_at))

    async def _status_of(self, pod: PodState) -> TrainerStatus | str:
        """Return the status of a pod's trainer, or a text that says why it is unknown."""
        async with self._slots:
            answer = await self._trainers.status(pod.address)
        if isinstance(answer, str):
            return f"{pod.key.name} reports no progress: {answer}"
        try:
            return TrainerStatus.read(answer)
        except InvalidMessageError as error:
            return f"ignoring the progress report of {pod.key.name}: {error}"

    async def _read(self, pod: PodState, pattern: str) -> TrainerStatus | str:
        """Return the progress from a pod's log, or a text that says why it is unknown."""
        of_log = f"with progress.logPattern in the log of {pod.key.name}"
        try:
            async with self._log_slots:
                log = await self._cluster.log_end(pod.key, pod.container)
                # A user's expression: it takes milliseconds, or a tenth of a second if it is
                # malicious. Other tasks continue meanwhile.
                said = await asyncio.to_thread(log_progress.read, pattern, log)
        except ClusterError as error:
            return f"no progress found {of_log}: {error.message}"
        except InvalidMessageError as error:
            return f"ignoring the progress found {of_log}: {error}"
        return said or f"no progress found {of_log}: none of its last lines match"

    def _may_read_log(self, key: Key) -> bool:
        """Return whether a log may be read again. A log costs the API server and a kubelet more
        than a poll costs a trainer.
        """
        now = asyncio.get_running_loop().time()
        wait = min(_LOG_SECONDS, self._interval_seconds / 2)
        if now - self._read_at.get(key, -wait) < wait:
            return False
        self._read_at[key] = now
        return True

    def _keep(self, key: Key, report: Report) -> None:
        """Keep a report. The time that a step stands is measured here, so that a changed clock
        never looks like a hang.
        """
        known, now = self._reports.get(key), asyncio.get_running_loop().time()
        if known is not None and _same_step(known, report):
            passed = timedelta(seconds=now - self._heard_at[key])
            report = replace(
                report, first_received=known.first_received, received=known.received + passed
            )
        self._reports[key] = report
        self._heard_at[key] = now
        self._on_report(key)

    def _note(self, key: Key, trouble: str) -> None:
        """Log a change once, and each repetition for debugging only."""
        known = self._troubles.get(key)
        self._troubles[key] = trouble
        level = logging.DEBUG if known == trouble else logging.INFO
        logger.log(level, "%s: %s", key, trouble or "progress is reported")


def _may_train(job: DDPJob) -> bool:
    if job.status.start_time is None or job.spec.suspend or job.deleting:
        return False
    return not job.status.finished


def _same_step(one: Report, other: Report) -> bool:
    by_the_same = (one.owner_uid, one.identity) == (other.owner_uid, other.identity)
    return by_the_same and _step(one) == _step(other)


def _step(report: Report) -> int | None:
    return report.status.step if report.status else None
