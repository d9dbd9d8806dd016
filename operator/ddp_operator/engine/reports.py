"""Polls the trainers of running jobs for their progress, or reads it in their pods' logs, and keeps
what each said last.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.job.membership.answers import InvalidAnswerError
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status import log_progress
from ddp_operator.job.status.progress import Report, TrainerStatus
from ddp_operator.ports import NOTHING_YET, Cluster, ClusterError, Key, Trainers

logger = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 10.0
"""How often a running job's trainer is asked how far it is, and its progress written at most."""

_AT_ONCE: Final = 64
"""Trainers asked at the same time; each answers in milliseconds, or not within two seconds."""
_LOGS_AT_ONCE: Final = 8
"""Logs read at the same time, of the connections to the API server that all share."""
_LOG_SECONDS: Final = 2.0
"""How often a log is read at most."""
_OUTAGE_SECONDS: Final = 0.5
"""How often a trainer is asked that is to go on after a restart: its first step ends the outage."""
_ROUND_SECONDS: Final = 0.5
"""How often to look which jobs are due."""
_JITTER: Final = 0.1
"""Each wait is longer or shorter by up to this part, so that jobs that start together drift
apart.
"""


class _Look(NamedTuple):
    """What was found in a job: of ten thousand few change from one round to the next."""

    entry: Entry
    may_train: bool
    is_out: bool


class ProgressReports:
    """What the trainers of running jobs said last; `run` keeps asking them.

    `on_report` is called for a job whose trainer has said something. Silence is no failure of a
    job: what was heard last stays.
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
        self._looks: dict[Key, _Look] = {}
        self._due: dict[Key, float] = {}
        self._troubles: dict[Key, str] = {}
        self._asking: set[Key] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._log_slots = asyncio.Semaphore(_LOGS_AT_ONCE)

    def of(self, job: Key) -> Report | None:
        """What the job's trainer said last, None where it has said nothing yet."""
        return self._reports.get(job)

    async def run(self) -> None:
        """Ask until cancelled."""
        wait = min(_ROUND_SECONDS, self._interval_seconds / 4)
        async with asyncio.TaskGroup() as asking:
            while True:
                for key in self._now_due():
                    asking.create_task(self._ask(key))
                await asyncio.sleep(wait)

    def _now_due(self) -> list[Key]:
        """The jobs whose time has come; each is due again an interval later."""
        now, interval = asyncio.get_running_loop().time(), self._interval_seconds
        looks, self._looks = self._looks, {}
        known, self._due = self._due, {}
        due: list[Key] = []
        for key, entry in self._jobs.entries.items():
            look = looks.get(key)
            if look is None or look.entry is not entry:
                look = _Look(entry, _may_train(entry.job), _is_out(entry.job))
            self._looks[key] = look
            if not look.may_train:
                continue
            # A job that is new here comes up at any moment of its first interval.
            self._due[key] = known.get(key, now + random.uniform(0, interval))
            if look.is_out:
                self._due[key] = min(self._due[key], now + _OUTAGE_SECONDS)
            if self._due[key] <= now and key not in self._asking:
                wait = min(interval, _OUTAGE_SECONDS) if look.is_out else interval
                self._due[key] = now + wait * random.uniform(1 - _JITTER, 1 + _JITTER)
                due.append(key)
        for forgotten in self._troubles.keys() - self._due.keys():
            del self._troubles[forgotten]
            self._reports.pop(forgotten, None)
            self._heard_at.pop(forgotten, None)
            self._read_at.pop(forgotten, None)
        return due

    async def _ask(self, key: Key) -> None:
        self._asking.add(key)
        try:
            await self._ask_pod_0(key)
        except Exception:
            # One job must never stop the others; this one is asked again in its turn.
            logger.exception("%s: asking for progress failed", key)
        finally:
            self._asking.discard(key)

    async def _ask_pod_0(self, key: Key) -> None:
        entry = self._jobs.get(key)
        if entry is None or not isinstance(entry.job, DDPJob):
            return
        pod = observe(entry.job, self._cluster.pods_of(key)).current.get(0)
        if pod is None or not pod.ready or pod.exit or pod.deleting:
            return  # there is nobody to ask
        source = entry.job.spec.progress
        said = await self._asked(pod) if pod.address else None
        if source is not None and not isinstance(said, TrainerStatus):
            if not self._may_read_log(key):
                return
            said = await self._read(pod, source.log_pattern)
        if isinstance(said, TrainerStatus):
            self._note(key, "")
            heard_at = self._clock()
            self._hear(key, Report(entry.uid, pod.identity, said, heard_at, heard_at))
        elif said is not None:
            self._note(key, said)
            if said.endswith(NOTHING_YET):
                heard_at = self._clock()
                self._hear(key, Report(entry.uid, pod.identity, None, heard_at, heard_at))

    async def _asked(self, pod: PodState) -> TrainerStatus | str:
        """What a pod's trainer says, or in words why nothing is known of it."""
        async with self._slots:
            answer = await self._trainers.status(pod.address)
        if isinstance(answer, str):
            return f"no progress is reported by {pod.key.name}: {answer}"
        try:
            return TrainerStatus.read(answer)
        except InvalidAnswerError as error:
            return f"the progress that {pod.key.name} reports is ignored: {error}"

    async def _read(self, pod: PodState, pattern: str) -> TrainerStatus | str:
        """What a pod's log says, or in words why nothing is known of it."""
        of_log = f"by progress.logPattern in the log of {pod.key.name}"
        try:
            async with self._log_slots:
                log = await self._cluster.log_end(pod.key, pod.container)
                # A stranger's expression: it takes milliseconds, of a malicious one a tenth of a
                # second, in which others are served.
                said = await asyncio.to_thread(log_progress.read, pattern, log)
        except ClusterError as error:
            return f"no progress is found {of_log}: {error.message}"
        except InvalidAnswerError as error:
            return f"the progress that is found {of_log} is ignored: {error}"
        return said or f"no progress is found {of_log}: no line of its end matches"

    def _may_read_log(self, key: Key) -> bool:
        """Whether the last time is long enough ago: a log costs the API server and a kubelet more
        than a question costs a trainer.
        """
        now = asyncio.get_running_loop().time()
        wait = min(_LOG_SECONDS, self._interval_seconds / 2)
        if now - self._read_at.get(key, -wait) < wait:
            return False
        self._read_at[key] = now
        return True

    def _hear(self, key: Key, report: Report) -> None:
        """Keep a report; the time that a step stands is measured, lest a clock that is set makes
        hangs.
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
        """Log a change for the better or worse once, and each repetition for debugging only."""
        known = self._troubles.get(key)
        self._troubles[key] = trouble
        level = logging.DEBUG if known == trouble else logging.INFO
        logger.log(level, "%s: %s", key, trouble or "progress is reported")


def _may_train(job: DDPJob | InvalidJobError) -> bool:
    if not isinstance(job, DDPJob) or job.status.start_time is None:
        return False
    return not (job.spec.suspend or job.deleting or job.status.finished)


def _is_out(job: DDPJob | InvalidJobError) -> bool:
    """Whether the time of a running job counts as lost until its trainer reports a step."""
    books = job.status.goodput if isinstance(job, DDPJob) else None
    return books is not None and books.outage is not None


def _same_step(one: Report, other: Report) -> bool:
    by_the_same = (one.owner_uid, one.identity) == (other.owner_uid, other.identity)
    return by_the_same and _step(one) == _step(other)


def _step(report: Report) -> int | None:
    return report.said.step if report.said else None
