"""Carries plans out: many writes at a time, in an order that is safe if the operator crashes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from ddp_operator.api.constants import KUEUE_MANAGED, KUEUE_RETRIABLE, LABEL_SERVING
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.delegation import check_copy
from ddp_operator.engine.deletion import Deletion
from ddp_operator.engine.job_cache import Entry
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.slow_start import slow_start
from ddp_operator.engine.tokens.token_secrets import TokenSecrets
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.queue import Upkeep
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import PodToken
from ddp_operator.job.pods.prerequisites import Prerequisite, network_policy, prerequisites
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import (
    AlreadyExistsError,
    Cluster,
    ClusterError,
    ForbiddenError,
    InvalidError,
    Key,
    NotLeaderError,
    NotServedError,
)

_CREATIONS_AT_ONCE: Final = 32
"""Creations of one job at a time, so that a job of a thousand pods does not delay all others. As
many as the API client has writes in flight."""

_STACKS_SECONDS: Final = 1.0
"""How long a hung trainer may take to write its stacks before its pod is deleted."""


_NO_LAUNCHER_IMAGE: Final = (
    "spec.launcher: inject copies the launcher from the operator's own image, which is unknown; "
    "start the operator with --launcher-image, or remove inject"
)

_OWN_NAMESPACE: Final = (
    "metadata.namespace: the operator runs in this namespace and creates no pods of jobs here, "
    "because they could use its account and its Secrets; create the job in another namespace"
)


_NOT_RETRIABLE: Final = {"annotations": {KUEUE_RETRIABLE: "false"}}
_WITHOUT_KUEUE: Final = {"$deleteFromPrimitiveList/finalizers": [KUEUE_MANAGED]}


class UnfitTemplateError(Exception):
    """The API server will never accept the pods of this job."""

    def __init__(self, job: DDPJob, message: str) -> None:
        super().__init__(message)
        self.job = job
        self.message = message


class Execution:
    """Makes the writes of plans, after asking `trainers`, if given, for stacks and checkpoints."""

    def __init__(
        self,
        cluster: Cluster[PodState],
        *,
        settings: PodSettings,
        trainers: Trainers | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._access = settings.access
        self._secrets = TokenSecrets(cluster, settings.access)
        self._trainers = trainers

    async def act(
        self,
        entry: Entry,
        planned: Plan,
        *,
        overtaken: Callable[[], bool],
    ) -> None:
        """Make the writes of a plan except spares, in order, until it is `overtaken`.

        All writes are tried; then the most serious error is raised.

        Raises:
            UnfitTemplateError: no pod of the job can ever be created.
            ClusterError: a write failed.
        """
        cluster, job = self._cluster, entry.job
        # UIDs as the plan saw them: while the first pods are deleted, new pods may take the names
        # of the rest.
        uids = {pod: cluster.uid_of(pod) for pod in planned.fence}
        deletion = Deletion(cluster, entry, planned)
        # A pod that still answers to a host name must release it before its replacement uses it.
        await _all(
            cluster.patch_pod(pod, {"labels": {LABEL_SERVING: None}}, uid=uids[pod])
            for pod in planned.fence
        )
        if isinstance(job, DDPJob):
            await self._ask_trainers(job, planned)

        async def delete() -> None:
            _raise_heaviest(await deletion.run(overtaken))

        others = [delete()]
        if isinstance(job, DDPJob) and _some_cannot_start(planned):
            others.append(self._secrets.restore(job, cluster.pods_of(job.key)))
        creates = planned.create or planned.create_service or planned.isolate is not None
        if isinstance(job, DDPJob) and creates:
            others.append(self._create(job, planned, overtaken))
        await _all(others)

    async def create_spares(
        self, job: DDPJob, spares: Sequence[Identity], *, overtaken: Callable[[], bool]
    ) -> str:
        """Create pods that a job can run without. Return why some cannot be created; empty if all
        can.

        Raises:
            NotLeaderError: another replica may be the leader by now.
        """
        errors = await self._create_pods(job, spares, overtaken)
        _raise_heaviest([error for error in errors if not _may_pass(error)])
        return str(errors[0]) if errors else ""

    async def tend_queue(self, needed: Upkeep) -> None:
        """Make the writes of pods in a queue. All are tried; then the most serious error is raised.

        Raises:
            ClusterError: a write failed.
        """
        cluster = self._cluster
        uids = {pod: cluster.uid_of(pod) for pods in needed for pod in pods}

        async def release(pod: Key, *, by_force: bool) -> None:
            if by_force:
                await cluster.delete_pod(pod, grace_seconds=0, uid=uids[pod])
            await cluster.patch_pod(pod, _WITHOUT_KUEUE, uid=uids[pod])

        await _all(cluster.patch_pod(pod, _NOT_RETRIABLE, uid=uids[pod]) for pod in needed.end)
        await _all(
            release(pod, by_force=pod in needed.force)
            for pod in dict.fromkeys((*needed.release, *needed.force))
        )

    async def _ask_trainers(self, job: DDPJob, planned: Plan) -> None:
        if self._trainers is None:
            return
        if planned.dump_stacks:
            token = self.token_at(job, planned.dump_stacks[0])  # all belong to one attempt
            await _dump_stacks(self._trainers, planned.dump_stacks, token=token)
        if planned.ask_checkpoint:
            token = self.token_at(job, planned.ask_checkpoint)
            await self._trainers.checkpoint(planned.ask_checkpoint, token=token)

    def token_at(self, job: DDPJob, address: str) -> str:
        """Return the token of the pod at an address."""
        pods = self._cluster.pods_of(job.key)
        keys = [pod.token_key for pod in pods if pod.address == address]
        return self._access.token_of(job.uid, keys[-1] if keys else "")

    async def _create(self, job: DDPJob, planned: Plan, overtaken: Callable[[], bool]) -> None:
        """Create what the pods need, then the pods.

        First the NetworkPolicy, without which anybody could reach the pods; then the Service, by
        which they find each other; then their other prerequisites. Then one pod, because what is
        wrong with it is wrong with all; then more and more at a time.
        """
        if job.namespace == self._access.operator_namespace:
            raise ForbiddenError(_OWN_NAMESPACE)
        if job.spec.launcher == "inject" and not self._settings.launcher_image:
            raise ForbiddenError(_NO_LAUNCHER_IMAGE)
        if planned.isolate:
            operator_namespace = self._access.operator_namespace
            policy = network_policy(job, operator_namespace=operator_namespace)
            await self._cluster.apply(policy)
        elif planned.isolate is False:
            await self._cluster.delete_network_policy(job.key, owner_uid=job.uid)
        if planned.create_service:
            await self._cluster.create_service(manifests.service(job))
            for needed in prerequisites(job):
                await self._apply(needed)

        _raise_heaviest(await self._create_pods(job, planned.create, overtaken))

    async def _create_pods(
        self, job: DDPJob, pods: Sequence[Identity], overtaken: Callable[[], bool]
    ) -> list[Exception]:
        if not pods:
            return []
        try:
            await check_copy(self._cluster, job)
            token = await self._pod_token(job, pods[0].attempt)
        except ClusterError as error:
            return [error]

        async def create(identity: Identity) -> None:
            pod = manifests.pod(
                job,
                identity,
                token=token,
                side_cars=self._settings.side_cars,
                launcher_image=self._settings.launcher_image,
            )
            try:
                await self._cluster.create_pod(pod)
            except InvalidError as error:
                if error.permanent and not self._had_pods(job):
                    raise UnfitTemplateError(job, error.message) from None
                raise

        return await slow_start(
            create, pods, most=_CREATIONS_AT_ONCE, wanted=lambda: not overtaken()
        )

    async def _pod_token(self, job: DDPJob, attempt: int) -> PodToken:
        """Return what new pods of an attempt receive. Create its Secret first, if it needs one.

        Raises:
            ClusterError: the Secret cannot be created.
        """
        existing = self._cluster.pods_of(job.key)
        key = self._access.key_for(job.uid, attempt, existing)
        if self._access.has_secrets:
            await self._secrets.create(job, key, existing)
        return self._access.pod_token(job.uid, key)

    async def _apply(self, needed: Prerequisite) -> None:
        try:
            await self._cluster.apply(needed.manifest)
        except (NotServedError, ForbiddenError) as error:
            raise error.because(needed.needs) from None

    def _had_pods(self, job: DDPJob) -> bool:
        """Return whether the server has accepted a pod of this spec, so that the template is not at
        fault.
        """
        return job.status.bookkeeping.accepted_spec_hash == job.spec_hash or any(
            (pod.owner_uid, pod.spec_hash) == (job.uid, job.spec_hash)
            for pod in self._cluster.pods_of(job.key)
        )


def _may_pass(error: Exception) -> bool:
    return isinstance(error, ClusterError) and not isinstance(error, NotLeaderError)


def _some_cannot_start(planned: Plan) -> bool:
    return any(gap.reason == "CannotStart" for gap in planned.status.gaps)


async def _dump_stacks(trainers: Trainers, addresses: Iterable[str], *, token: str) -> None:
    """Make hung trainers write their stacks, if they can."""
    asked = (trainers.dump_stacks(address, token=token) for address in addresses)
    offered = await asyncio.gather(*asked)
    if any(offered):
        await asyncio.sleep(_STACKS_SECONDS)


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Wait for all calls, then raise the most serious error: permanent errors before transient
    ones.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    _raise_heaviest([result for result in results if isinstance(result, BaseException)])


def _raise_heaviest(errors: Sequence[BaseException]) -> None:
    if errors:
        raise max(errors, key=_weight)


def _weight(error: BaseException) -> int:
    order = (ClusterError, InvalidError, ForbiddenError, AlreadyExistsError, UnfitTemplateError)
    if not isinstance(error, order):
        return len(order)  # a bug, or a cancellation
    return max(i for i, kind in enumerate(order) if isinstance(error, kind))
