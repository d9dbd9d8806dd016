"""One reconcile: look at a job and its pods, plan, act, and say so in the job's status."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator import __version__
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.execution import Execution, UnfitTemplateError
from ddp_operator.engine.jobs import Entry, JobCache
from ddp_operator.engine.launchers import Launchers
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.reports import PROGRESS_SECONDS
from ddp_operator.engine.statuspatch import News, forgotten, news, pruned, status_patch
from ddp_operator.engine.turns import Turns
from ddp_operator.job.membership.launchers import NOTHING
from ddp_operator.job.planning.convergence import forbidden, hold
from ddp_operator.job.planning.decisions import fail
from ddp_operator.job.planning.group import spares
from ddp_operator.job.planning.model import Plan, accounted
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject
from ddp_operator.job.pods.access import Access
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import (
    API_SERVER_ERROR,
    NAME_TAKEN,
    PODS_FORBIDDEN,
    STATUS_NOT_STORED,
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
    Manifest,
    NotFoundError,
    NotLeaderError,
    Trainers,
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

_GLANCE_SECONDS: Final = 0.2
"""How often a plan that takes longer is compared with what its job needs by now."""

_LASTING: Final = timedelta(seconds=10)
"""How long the API server may answer with errors before a job says so: no mere restart of it."""

_STORED_WHOLE_AGAIN: Final = timedelta(seconds=60)
"""Until a decision is tried again that the CRD would not store whole."""

_MOST_FIELDS: Final = 60
"""Characters of the names of fields that the CRD does not keep."""

_MAX_DECISIONS: Final = 8
"""More decisions than this in one go, without anything new to see, would be a bug that loops."""


class Reconciler:
    """Brings jobs to where they should be, one call at a time for each job.

    Asks `plan` again after each decision, since a decision must be stored before anything is done
    about it.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        *,
        access: Access,
        side_cars: SideCars = DEFAULT_SIDE_CARS,
        launcher_image: str = "",
        clock: Callable[[], datetime],
        report_of: Callable[[Key], Report | None] = lambda _: None,
        launchers: Launchers | None = None,
        trainers: Trainers | None = None,
        progress_seconds: float = PROGRESS_SECONDS,
        progress_writes_per_second: float = PROGRESS_WRITES_PER_SECOND,
        metrics: Metrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._access = access
        self._clock = clock
        self._report_of = report_of
        self._launchers = launchers
        self._execution = Execution(
            cluster,
            access=access,
            side_cars=side_cars,
            launcher_image=launcher_image,
            trainers=trainers,
        )
        self._metrics = metrics or Metrics()
        self._failing_since: dict[Key, datetime] = {}
        """By job: since when the API server has answered with nothing but errors."""
        self._failures_told: set[Key] = set()
        self._undecided_until: dict[Key, datetime] = {}
        """By job: until when no decision is tried, since the last one was not stored whole."""
        self._progress_turns = Turns(per_second=progress_writes_per_second)
        self._intervals = {
            News.PROGRESS: timedelta(seconds=progress_seconds),
            News.COUNTS: _MINOR_INTERVAL,
        }

    async def reconcile(self, key: Key) -> datetime | None:
        """Do what a job needs now; return when it needs another look, None for not before news.

        Raises:
            ClusterError: something could not be done; to be tried again later.
        """
        began = self._clock()
        try:
            look_again_at = await self._reconcile(key)
        except NotLeaderError:
            raise
        except ClusterError as error:
            # Of a status that has changed there will be news; quota may conflict for long.
            if not (isinstance(error, ConflictError) and self._jobs.is_doubtful(key)):
                await self._show_lasting(key, error, began)
            raise
        else:
            self._forget_failures(key)
            return look_again_at
        finally:
            if self._launchers:
                self._launchers.look_at(key)

    async def _reconcile(self, key: Key) -> datetime | None:
        for _ in range(_MAX_DECISIONS):
            entry = self._jobs.get(key)
            if entry is None:
                self._undecided_until.pop(key, None)
                return None
            if self._jobs.is_doubtful(key):
                await self._read(key, entry)
                continue
            planned = self._plan(key, entry)
            try:
                if planned.decided:
                    if until := await self._decide(key, entry, planned):
                        return until
                else:
                    return await self._carry_out(key, entry, planned)
            except UnfitTemplateError as unfit:
                job = _as_seen(unfit.job, planned)
                now = self._clock()
                planned = fail(job, "InvalidPodTemplate", unfit.message, now)
                planned = accounted(unfit.job, planned, now)
                await self._decide(key, entry, planned)
        raise RuntimeError(f"{key}: {_MAX_DECISIONS} decisions in a row; this is a bug")

    def _plan(self, key: Key, entry: Entry) -> Plan:
        pods, now = self._cluster.pods_of(key), self._clock()
        if isinstance(entry.job, DDPJob):
            return plan(
                entry.job,
                pods,
                now,
                nodes=self._cluster.nodes(),
                report=self._report_of(key),
                heard=self._launchers.of(entry.job) if self._launchers else NOTHING,
            )
        return reject(entry.manifest, entry.job, pods, now)

    async def _decide(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
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
                partly = Entry(answer, replace(entry.job, status=stored))
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
            await self._emit(partly, held.events)
        return until

    async def _show_lasting(self, key: Key, error: ClusterError, began: datetime) -> None:
        """Have a job say that the API server has answered with errors for a while: in its status,
        and where that cannot be stored either, by an Event.
        """
        entry, now = self._jobs.get(key), self._clock()
        if entry is None:
            self._forget_failures(key)
            return
        # The earlier one, but not a time to come: clocks are set back.
        since = self._failing_since[key] = min(self._failing_since.get(key, began), now)
        named = error.retry_after_seconds if isinstance(error, UnavailableError) else None
        if now - since < _LASTING and timedelta(seconds=named or 0) < _LASTING:
            return
        message = f"writes to the API server fail: {error.message}"
        events: Iterable[Event] = (Event(API_SERVER_ERROR, message, warning=True),)
        job = entry.job
        if isinstance(job, DDPJob) and not (job.status.finished or self._jobs.is_doubtful(key)):
            running = job.status.condition("Running")
            refused = isinstance(error, AlreadyExistsError | ForbiddenError | InvalidError)
            if refused and running and running.reason in (NAME_TAKEN, PODS_FORBIDDEN):
                return  # it is said already
            seen = _as_seen(job, self._plan(key, entry))
            held = accounted(job, hold(seen, API_SERVER_ERROR, message, now), now)
            with contextlib.suppress(ClusterError):
                await self._record(key, entry, held.status, held.events)
                events = ()
        if events and key not in self._failures_told:
            self._failures_told.add(key)
            await self._emit(entry, events)

    def _forget_failures(self, key: Key) -> None:
        self._failing_since.pop(key, None)
        self._failures_told.discard(key)

    async def _carry_out(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
        if planned.delete_job:
            await self._cluster.delete_job(key, uid=entry.uid)
            return None
        if planned.tell and self._launchers and isinstance(entry.job, DDPJob):
            self._launchers.tell(entry.job, planned.tell)
        status, events, look_again_at = planned.status, planned.events, planned.look_again_at
        overtaken = self._glances(key, entry, planned)
        try:
            no_spares = await self._execution.act(entry, planned, overtaken=overtaken)
        except (AlreadyExistsError, ForbiddenError, InvalidError) as refused:
            # Quota, policy, or a name in use: it may pass, and until then the user must see it.
            if not isinstance(entry.job, DDPJob):
                raise  # what is wrong with it stands in its status
            taken = isinstance(refused, AlreadyExistsError)
            reason = NAME_TAKEN if taken else PODS_FORBIDDEN
            job, now = _as_seen(entry.job, planned), self._clock()
            message = refused.message if taken else forbidden(job, refused.message)
            held = hold(job, reason, message, now, wanted=planned.create)
            held = accounted(entry.job, held, now)
            await self._record(key, entry, held.status, held.events)
            raise
        if overtaken():
            return self._clock()  # what was left out must not be on record as done
        if no_spares and isinstance(entry.job, DDPJob):
            held = spares.refused(replace(entry.job, status=status), no_spares, self._clock())
            await self._record(key, entry, held.status, (*events, *held.events))
            return self._clock()
        later = self._may_wait_until(entry, status)
        if later is not None:
            return min(later, look_again_at) if look_again_at else later
        await self._record(key, entry, status, events)
        return look_again_at

    def _glances(self, key: Key, entry: Entry, planned: Plan) -> Callable[[], bool]:
        """Return what says, between the many writes of one plan, whether something has happened
        that has to be decided about first: a change of the job, its deletion, a failure.
        """
        now = asyncio.get_running_loop().time
        glanced_at, overtaken = now(), False
        alive: Set[Key] | None = None
        said: object = None

        def is_overtaken() -> bool:
            nonlocal glanced_at, overtaken, alive, said
            if self._jobs.get(key) is not entry:
                overtaken = True
            elif not overtaken and now() - glanced_at >= _GLANCE_SECONDS:
                alive_before, said_before = alive, said
                alive, said = self._alive(key, planned), self._said(entry)
                due = planned.look_again_at is not None and planned.look_again_at <= self._clock()
                # Most news tell that pods are created and come up, which changes no decision.
                if due or alive_before is None or alive_before - alive or said != said_before:
                    overtaken = self._plan(key, entry).decided
                glanced_at = now()
            return overtaken

        return is_overtaken

    def _alive(self, key: Key, planned: Plan) -> Set[Key]:
        """Return the pods that are to stay, and have not ended nor been told to."""
        pods = self._cluster.pods_of(key)
        alive = {p.key for p in pods if not (p.failed or p.disrupted or p.succeeded)}
        return alive.difference(planned.delete)

    def _said(self, entry: Entry) -> object:
        """Return what launchers and nodes say that pods do not show."""
        heard = NOTHING
        if self._launchers and isinstance(entry.job, DDPJob):
            heard = self._launchers.of(entry.job)
        return heard.failures, self._cluster.nodes().signalled

    def _may_wait_until(self, entry: Entry, status: DDPJobStatus) -> datetime | None:
        """Until when news may wait; None for news that may not, or may no longer, or for none."""
        if not isinstance(entry.job, DDPJob) or status == entry.job.status:
            return None
        how_much = news(entry.job.status, status)
        interval = self._intervals.get(how_much, timedelta())
        now = self._clock()
        # A clock that was set back must not make news wait for as long.
        if timedelta() <= now - entry.status_written_at < interval:
            return entry.status_written_at + interval
        wait = how_much is News.PROGRESS and self._progress_turns.wait_seconds(entry.job.key)
        return now + timedelta(seconds=wait) if wait else None

    async def _record(
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
            ConflictError: as `_record` does.
        """
        patch: Manifest = {}
        if not isinstance(entry.job, DDPJob) or status != entry.job.status:  # spares building it
            patch = status_patch(entry.manifest.get("status") or {}, status)
        if not patch:
            return entry.manifest
        version = entry.manifest["metadata"].get("resourceVersion")
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
        self._complain(pruned(status, stored.get("status") or {}))
        self._progress_turns.taken(key)
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

    async def _read(self, key: Key, entry: Entry) -> None:
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
        await self._emit(entry, events)

    async def _emit(self, entry: Entry, events: Iterable[Event]) -> None:
        metadata = entry.manifest["metadata"]
        for event in events:
            logger.info(
                "%s/%s: %s: %s",
                metadata["namespace"],
                metadata["name"],
                event.reason,
                event.message,
            )
            await self._cluster.emit_event(entry.manifest, event)


def _as_seen(job: DDPJob, planned: Plan) -> DDPJob:
    """Return the job with what a plan saw, but nothing of what it meant to achieve."""
    return replace(job, status=planned.seen) if planned.seen else job
