"""One reconcile: read a job and its pods, plan, act, and write the status."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.engine.delegation import begin_copy, keep_workload, tend_queue
from ddp_operator.engine.execution import Execution, UnfitTemplateError
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.slow_start import OvertakenCheck
from ddp_operator.engine.status_writer import PROGRESS_WRITES_PER_SECOND, StatusWriter
from ddp_operator.engine.trainers.hangs import Hangs
from ddp_operator.engine.trainers.launchers import Launchers
from ddp_operator.engine.trainers.reports import PROGRESS_SECONDS
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.hang.result import NOTHING_KNOWN
from ddp_operator.job.membership.launchers import NO_LAUNCHERS
from ddp_operator.job.planning.convergence import explain_refusal, report_refusal
from ddp_operator.job.planning.decisions import fail
from ddp_operator.job.planning.group import spares
from ddp_operator.job.planning.model import Plan, with_goodput
from ddp_operator.job.planning.places.queue import end_with_workload, upkeep
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject, with_problem
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import (
    API_SERVER_ERROR,
    NAME_TAKEN,
    PODS_FORBIDDEN,
)
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import (
    AlreadyExistsError,
    Cluster,
    ClusterError,
    ConflictError,
    Event,
    ForbiddenError,
    InvalidError,
    Key,
    NamespaceEndsError,
    NotLeaderError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_REPORT_ERRORS_AFTER: Final = timedelta(seconds=10)
"""How long the API server may answer with errors before a job reports it: longer than its
restart."""

_MAX_DECISIONS: Final = 8
"""Decisions in one reconcile without new input; more would be a bug that loops."""


class Reconciler:
    """Brings jobs to their desired state, with one call at a time for each job.

    It calls `plan` again after each decision, because a decision must be stored before it is
    carried out.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        *,
        settings: PodSettings,
        clock: Callable[[], datetime],
        report_of: Callable[[Key], Report | None] = lambda _: None,
        launchers: Launchers | None = None,
        hangs: Hangs | None = None,
        trainers: Trainers | None = None,
        progress_seconds: float = PROGRESS_SECONDS,
        progress_writes_per_second: float = PROGRESS_WRITES_PER_SECOND,
        metrics: Metrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._clock = clock
        self._report_of = report_of
        self._launchers = launchers
        self._hangs = hangs
        self._isolate = settings.isolate
        self._execution = Execution(cluster, settings=settings, trainers=trainers)
        self._status = StatusWriter(
            cluster,
            jobs,
            clock=clock,
            metrics=metrics or Metrics(),
            progress_seconds=progress_seconds,
            progress_writes_per_second=progress_writes_per_second,
        )
        self._failing_since: dict[Key, datetime] = {}
        """By job: since when the API server has answered with nothing but errors."""
        self._failures_reported: set[Key] = set()

    async def reconcile(self, key: Key) -> datetime | None:
        """Do what a job needs now. Return when to requeue it, or None to wait for a change.

        Raises:
            ClusterError: something failed; retry later.
        """
        began = self._clock()
        try:
            requeue_at = await self._reconcile(key)
        except NotLeaderError:
            raise
        except ClusterError as error:
            # After a conflict the watch reports the changed status. Conflicts of quota may last.
            if not (isinstance(error, ConflictError) and self._jobs.is_doubtful(key)):
                await self._report_lasting_errors(key, error, began)
            raise
        else:
            self._forget_failures(key)
            return requeue_at

    async def _reconcile(self, key: Key) -> datetime | None:
        for _ in range(_MAX_DECISIONS):
            pods = self._cluster.pods_of(key)
            entry = self._jobs.get(key)
            # The status says which group is the job's.
            if any(pod.queue for pod in pods) and not self._jobs.is_doubtful(key):
                tend = self._execution.tend_queue
                await tend_queue(self._cluster, key, entry, pods, self._clock(), tend=tend)
                pods, entry = self._cluster.pods_of(key), self._jobs.get(key)
            if entry is None or entry.foreign:
                return None
            if self._jobs.is_doubtful(key):
                await self._status.read(key, entry)
                continue
            planned = None
            if isinstance(entry.job, DDPJob):
                ended = await keep_workload(self._cluster, entry.job)
                planned = end_with_workload(entry.job, ended, self._clock()) if ended else None
                planned = planned or await begin_copy(self._cluster, entry.job)
            planned = planned or self._plan(key, entry, pods)
            try:
                if planned.decided:
                    await self._status.decide(key, entry, planned)
                else:
                    return await self._carry_out(key, entry, planned)
            except UnfitTemplateError as unfit:
                job = replace(unfit.job, status=planned.seen or unfit.job.status)
                now = self._clock()
                planned = fail(job, "InvalidPodTemplate", unfit.message, now)
                planned = with_goodput(unfit.job, planned, now)
                await self._status.decide(key, entry, planned)
        raise RuntimeError(f"{key}: {_MAX_DECISIONS} decisions in a row; this is a bug")

    def _plan(self, key: Key, entry: Entry, pods: Sequence[PodState]) -> Plan:
        job, problem, now = entry.job, entry.problem, self._clock()
        if isinstance(job, InvalidJobError):
            return reject(entry.manifest, job, pods, now)
        if problem and job.status.start_time is None:
            return reject(entry.manifest, problem, pods, now)
        planned = plan(
            job,
            pods,
            now,
            nodes=self._cluster.nodes(),
            report=self._report_of(key),
            launchers=self._launchers.of(job) if self._launchers else NO_LAUNCHERS,
            hang=self._hangs.of(job) if self._hangs else NOTHING_KNOWN,
            isolate=self._isolate,
        )
        return with_problem(job, planned, problem) if problem else planned

    async def _report_lasting_errors(self, key: Key, error: ClusterError, began: datetime) -> None:
        """Report that the API server has answered with errors for a while: in the job's status, or
        by an Event if the status cannot be stored either.
        """
        entry, now = self._jobs.get(key), self._clock()
        if entry is None:
            self._forget_failures(key)
            return
        # Keep the earlier time, but never a future one: clocks are set back.
        since = self._failing_since[key] = min(self._failing_since.get(key, began), now)
        named = error.retry_after_seconds if isinstance(error, UnavailableError) else None
        if (
            now - since < _REPORT_ERRORS_AFTER
            and timedelta(seconds=named or 0) < _REPORT_ERRORS_AFTER
        ):
            return
        message = f"writes to the API server fail: {error.message}"
        events: Iterable[Event] = (Event(API_SERVER_ERROR, message, warning=True),)
        job = entry.job
        if isinstance(job, DDPJob) and not (
            job.status.finished or job.spec.managed_elsewhere or self._jobs.is_doubtful(key)
        ):
            running = job.status.condition("Running")
            refused = isinstance(error, AlreadyExistsError | ForbiddenError | InvalidError)
            if refused and running and running.reason in (NAME_TAKEN, PODS_FORBIDDEN):
                return  # already reported
            planned = self._plan(key, entry, self._cluster.pods_of(key))
            with contextlib.suppress(ClusterError):
                await self._record_refusal(key, entry, planned, API_SERVER_ERROR, message)
                events = ()
        if events and key not in self._failures_reported:
            self._failures_reported.add(key)
            await self._status.emit(entry, events)

    def _forget_failures(self, key: Key) -> None:
        self._failing_since.pop(key, None)
        self._failures_reported.discard(key)

    async def _carry_out(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
        if planned.delete_job:
            await self._cluster.delete_job(key, uid=entry.uid)
            return None
        if planned.assignments and self._launchers and isinstance(entry.job, DDPJob):
            self._launchers.assign(entry.job, planned.assignments)
        if planned.ask_traces and self._hangs and isinstance(entry.job, DDPJob):
            _, address = planned.ask_traces[0]  # all belong to one attempt
            token = self._execution.token_at(entry.job, address)
            self._hangs.ask(entry.job, planned.ask_traces, token=token)
        overtaken = self._overtaken_check(key, entry, planned)
        try:
            await self._execution.act(entry, planned, overtaken=overtaken)
        except (AlreadyExistsError, ForbiddenError, InvalidError) as refused:
            # Quota, policy, or a name in use. It may pass, and until then the user must see it.
            if isinstance(refused, NamespaceEndsError):
                # Kubernetes deletes the pods of a namespace before its jobs.
                own = [pod for pod in self._cluster.pods_of(key) if pod.owner_uid == entry.uid]
                await self._execution.tend_queue(upkeep(None, own, self._clock()))
            if not isinstance(entry.job, DDPJob):
                raise  # the status already says what is wrong
            if isinstance(refused, AlreadyExistsError):
                reason, message = NAME_TAKEN, refused.message
            else:
                reason, message = PODS_FORBIDDEN, explain_refusal(entry.job, refused.message)
            await self._record_refusal(key, entry, planned, reason, message)
            raise
        if overtaken():
            return self._clock()  # skipped writes must not be recorded as done
        later = self._status.deferred_until(entry, planned.status)
        if later is None:
            await self._status.record(key, entry, planned.status, planned.events)
        again = await self._create_spares(key, planned)
        return min((due for due in (later, planned.requeue_at, again) if due), default=None)

    async def _record_refusal(
        self, key: Key, entry: Entry, planned: Plan, reason: str, message: str
    ) -> None:
        """Store what a plan saw, and why the API server does not let the operator carry it out."""
        job, now = entry.job, self._clock()
        assert isinstance(job, DDPJob)
        held = report_refusal(job, reason, message, now, seen=planned.seen, wanted=planned.create)
        held = with_goodput(job, held, now)
        await self._status.record(key, entry, held.status, held.events)

    async def _create_spares(self, key: Key, planned: Plan) -> datetime | None:
        """Create spares once the job's own state is stored, because the job can run without them.
        Return when to requeue it if some are missing.
        """
        entry = self._jobs.get(key)
        if not planned.create_spares or entry is None or not isinstance(entry.job, DDPJob):
            return None
        if entry.job.generation != planned.status.observed_generation:
            return self._clock()  # planned for an earlier spec
        overtaken = self._overtaken_check(key, entry, planned)
        failure = await self._execution.create_spares(
            entry.job, planned.create_spares, overtaken=overtaken
        )
        if failure:
            held = spares.refused(entry.job, failure, self._clock())
            await self._status.record(key, entry, held.status, held.events)
        return self._clock() if failure or overtaken() else None

    def _overtaken_check(self, key: Key, entry: Entry, planned: Plan) -> OvertakenCheck:
        def pods() -> Sequence[PodState]:
            return self._cluster.pods_of(key)

        return OvertakenCheck(
            planned,
            is_current=lambda: self._jobs.get(key) is entry,
            pods=pods,
            reports=lambda: self._outside_reports(entry),
            needs_decision=lambda: self._plan(key, entry, pods()).decided,
            clock=self._clock,
        )

    def _outside_reports(self, entry: Entry) -> object:
        """Return what launchers and nodes report that pods do not show."""
        states = NO_LAUNCHERS
        if self._launchers and isinstance(entry.job, DDPJob):
            states = self._launchers.of(entry.job)
        return states.failures, self._cluster.nodes().signalled
