"""One reconcile: look at a job and its pods, plan, act, and say so in the job's status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.constants import LABEL_SERVING
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.jobs import Entry, JobCache
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.reports import PROGRESS_SECONDS
from ddp_operator.engine.slow_start import slow_start
from ddp_operator.engine.statuspatch import News, as_stored, merge_patch, news
from ddp_operator.job.planning.convergence import FORBIDDEN, NAME_TAKEN, hold
from ddp_operator.job.planning.decisions import fail
from ddp_operator.job.planning.model import Plan, accounted
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import Access
from ddp_operator.job.pods.network_policy import network_policy
from ddp_operator.job.pods.state import Identity, PodState
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
    Trainers,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_MINOR_INTERVAL: Final = timedelta(seconds=2)
"""Status changes that nobody waits for, such as 5 ready pods after 4, are written this far
apart.
"""

_CREATIONS_AT_ONCE: Final = 32
"""Of one job, so that one of a thousand pods does not push all others to the end of the line; as
many as the API client has writes in flight."""

_DELETIONS_AT_ONCE: Final = 16
"""Of one job: pods that take the deleted ones' place need not wait until all are gone."""

_STACKS_SECONDS: Final = 1.0
"""What a trainer that hangs gets to write its stacks, before its pod is deleted."""

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
        clock: Callable[[], datetime],
        report_of: Callable[[Key], Report | None] = lambda _: None,
        trainers: Trainers | None = None,
        progress_seconds: float = PROGRESS_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._access = access
        self._clock = clock
        self._report_of = report_of
        self._trainers = trainers
        self._metrics = metrics or Metrics()
        self._intervals = {
            News.PROGRESS: timedelta(seconds=progress_seconds),
            News.COUNTS: _MINOR_INTERVAL,
        }

    async def reconcile(self, key: Key) -> datetime | None:
        """Do what a job needs now; return when it needs another look, None for not before news.

        Raises:
            ClusterError: something could not be done; to be tried again later.
        """
        for _ in range(_MAX_DECISIONS):
            entry = self._jobs.get(key)
            if entry is None:
                return None
            if self._jobs.is_doubtful(key):
                await self._read(key, entry)
                continue
            planned = self._plan(key, entry)
            try:
                if planned.decided:
                    await self._record(key, entry, planned.status, planned.events)
                else:
                    return await self._carry_out(key, entry, planned)
            except _UnfitTemplateError as unfit:
                job = _as_seen(unfit.job, planned)
                now = self._clock()
                planned = fail(job, "InvalidPodTemplate", unfit.message, now)
                planned = accounted(unfit.job, planned, now)
                await self._record(key, entry, planned.status, planned.events)
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
            )
        return reject(entry.manifest, entry.job, pods, now)

    async def _carry_out(self, key: Key, entry: Entry, planned: Plan) -> datetime | None:
        if planned.delete_job:
            await self._cluster.delete_job(key, uid=entry.uid)
            return None
        status, events, look_again_at = planned.status, planned.events, planned.look_again_at
        try:
            await self._act(entry, planned)
        except (AlreadyExistsError, ForbiddenError, InvalidError) as refused:
            # Quota, policy, or a name in use: it may pass, and until then the user must see it.
            if not isinstance(entry.job, DDPJob):
                raise  # what is wrong with it stands in its status
            taken = isinstance(refused, AlreadyExistsError)
            reason = NAME_TAKEN if taken else FORBIDDEN
            job, now = _as_seen(entry.job, planned), self._clock()
            held = accounted(entry.job, hold(job, reason, refused.message, now), now)
            await self._record(key, entry, held.status, held.events)
            raise
        later = self._may_wait_until(entry, status)
        if later is not None:
            return min(later, look_again_at) if look_again_at else later
        await self._record(key, entry, status, events)
        return look_again_at

    def _may_wait_until(self, entry: Entry, status: DDPJobStatus) -> datetime | None:
        """Until when news may wait; None for news that may not, or may no longer, or for none."""
        if not isinstance(entry.job, DDPJob) or status == entry.job.status:
            return None
        interval = self._intervals.get(news(entry.job.status, status), timedelta())
        since = self._clock() - entry.status_written_at
        # A clock that was set back must not make news wait for as long.
        return entry.status_written_at + interval if timedelta() <= since < interval else None

    async def _act(self, entry: Entry, planned: Plan) -> None:
        cluster, job = self._cluster, entry.job
        # A pod that still answers to a host name gives it up before its replacement takes it.
        await _all(cluster.patch_pod_labels(pod, {LABEL_SERVING: None}) for pod in planned.fence)
        if planned.dump_stacks and self._trainers is not None:
            token = self._access.token_of(entry.uid)
            await _dump_stacks(self._trainers, planned.dump_stacks, token=token)
        slots = asyncio.Semaphore(_DELETIONS_AT_ONCE)

        async def delete(pod: Key) -> None:
            async with slots:
                await cluster.delete_pod(pod, grace_seconds=planned.grace_seconds.get(pod))

        deletions = [delete(pod) for pod in planned.delete]
        creates = planned.create or planned.create_service or planned.isolate is not None
        if isinstance(job, DDPJob) and creates:
            await _all([*deletions, self._create(job, planned)])
        else:
            await _all(deletions)

    async def _create(self, job: DDPJob, planned: Plan) -> None:
        """Create the NetworkPolicy, without which anybody would find the pods, and the Service,
        without which they would not find each other; then one pod, for what is wrong with it is
        wrong with all, then ever more.
        """
        if planned.isolate:
            operator_namespace = self._access.operator_namespace
            policy = network_policy(job, operator_namespace=operator_namespace)
            await self._cluster.apply_network_policy(policy)
        elif planned.isolate is False:
            await self._cluster.delete_network_policy(job.key, owner_uid=job.uid)
        if planned.create_service:
            await self._cluster.create_service(manifests.service(job))

        token = self._access.token_of(job.uid)

        async def create(identity: Identity) -> None:
            try:
                await self._cluster.create_pod(manifests.pod(job, identity, token=token))
            except InvalidError as error:
                if error.for_good and not self._had_pods(job):
                    raise _UnfitTemplateError(job, error.message) from None
                raise

        _raise_heaviest(await slow_start(create, planned.create, most=_CREATIONS_AT_ONCE))

    def _had_pods(self, job: DDPJob) -> bool:
        """Whether the server has ever accepted one: then the template is not what is wrong."""
        return job.status.accepted_spec_hash == job.spec_hash or any(
            (pod.owner_uid, pod.spec_hash) == (job.uid, job.spec_hash)
            for pod in self._cluster.pods_of(job.key)
        )

    async def _record(
        self, key: Key, entry: Entry, status: DDPJobStatus, events: Iterable[Event]
    ) -> None:
        """Write a status, if it differs from the stored one, then tell what has happened.

        Raises:
            ConflictError: the job has changed since this reconcile began; it must be planned anew.
        """
        patch: Manifest = {}
        if not isinstance(entry.job, DDPJob) or status != entry.job.status:  # spares building it
            patch = merge_patch(entry.manifest.get("status") or {}, as_stored(status))
        if patch:
            version = entry.manifest["metadata"].get("resourceVersion")
            try:
                stored = await self._cluster.patch_status(key, patch, resource_version=version)
            except (ConflictError, UnavailableError):
                # Pods created for what the job was would be wrong for what it has become.
                self._jobs.doubt(key)
                raise
            except NotFoundError:
                self._jobs.remove(key, uid=entry.uid)
                return  # of a job that is gone, its vanishing pods included, there is no news
            self._jobs.put(stored, written_at=self._clock())
            if isinstance(entry.job, DDPJob):
                self._metrics.recorded(before=entry.job.status, after=status)
        await self._tell(entry, events)

    async def _read(self, key: Key, entry: Entry) -> None:
        """Learn what is stored, when a write has left that open."""
        try:
            # A patch of nothing changes nothing, and is answered with the whole job.
            stored = await self._cluster.patch_status(key, {}, resource_version=None)
        except NotFoundError:
            self._jobs.remove(key, uid=entry.uid)
        else:
            self._jobs.read(stored, knowing=entry)

    async def _tell(self, entry: Entry, events: Iterable[Event]) -> None:
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
    seen = {
        name: getattr(planned.status, name)
        for name in ("observed_generation", "ready_replicas", "ready")
    }
    return replace(job, status=job.status.model_copy(update=seen))


async def _dump_stacks(trainers: Trainers, addresses: Iterable[str], *, token: str) -> None:
    """Have hung trainers write their stacks, as far as they offer it."""
    asked = (trainers.dump_stacks(address, token=token) for address in addresses)
    offered = await asyncio.gather(*asked)
    if any(offered):
        await asyncio.sleep(_STACKS_SECONDS)


class _UnfitTemplateError(Exception):
    """The API server will never accept the pods of this job."""

    def __init__(self, job: DDPJob, message: str) -> None:
        super().__init__(message)
        self.job = job
        self.message = message


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Wait for all, then raise what weighs most: what can never succeed before what may pass."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    _raise_heaviest([result for result in results if isinstance(result, BaseException)])


def _raise_heaviest(errors: Sequence[BaseException]) -> None:
    if errors:
        raise max(errors, key=_weight)


def _weight(error: BaseException) -> int:
    order = (ClusterError, InvalidError, ForbiddenError, AlreadyExistsError, _UnfitTemplateError)
    if not isinstance(error, order):
        return len(order)  # a bug, or our own end
    return max(i for i, kind in enumerate(order) if isinstance(error, kind))
