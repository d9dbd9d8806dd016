"""The operator's reconciler over the models of Kueue and MultiKueue, in virtual time."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.engine.trainers.launchers import Launchers
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.membership.world import world_of
from ddp_operator.ports import ClusterError, ForbiddenError, Key, Manifest

from tests.simulation.kueue import Json, Kueue, key_of
from tests.simulation.kueue_contract import workload
from tests.simulation.kueue_multikueue import CHECK, Cluster, MultiKueue
from tests.unit.engine.fakes import SETTINGS, FakeCluster

JOB = Key("default", "train")
URGENT = Key("default", "urgent")
_STEP = timedelta(seconds=10)


class Clock:
    """The time of all clusters of a history."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class QueueCluster(FakeCluster):
    """An API server in which Kueue's webhooks and CRDs decide about Workloads and pods."""

    def __init__(self, kueue: Kueue) -> None:
        super().__init__()
        self.kueue = kueue
        self.pods = kueue.pods
        self.applied["Workload"] = kueue.workloads
        self.pod_quota: int | None = None
        """The ResourceQuota of the namespace."""

    async def create_pod(self, manifest: Manifest) -> None:
        is_new = key_of(manifest) not in self.pods
        if is_new and self.pod_quota is not None and len(self.pods) >= self.pod_quota:
            raise ForbiddenError("pods is forbidden: exceeded quota: team", status=403)
        await super().create_pod(manifest)
        if is_new:
            self.kueue.create_pod(manifest)

    def _end(self, pod: Key) -> None:
        self.kueue.delete_pod(pod)

    async def apply(self, manifest: Manifest) -> None:
        if manifest["kind"] != "Workload":
            await super().apply(manifest)
        elif (stored := self.kueue.workloads.get(key_of(manifest))) is None:
            self.kueue.create_workload(manifest)
        elif {**stored["spec"], **manifest["spec"]} != stored["spec"]:
            self.kueue.update_workload(key_of(manifest), manifest["spec"])

    async def update(self, changed: Manifest) -> Manifest:
        stored = self.kueue.workloads[key_of(changed)]
        self.kueue.update_workload(key_of(changed), changed["spec"])
        stored["metadata"] |= {"annotations": changed["metadata"]["annotations"]}
        return stored


class Joining:
    """Launchers that answer at once, and whose processes join each group by themselves."""

    def __init__(self, kueue: Kueue) -> None:
        self._kueue = kueue

    def of(self, job: DDPJob) -> LauncherStates:
        """See `Launchers`."""
        known = world_of(job).generation, True
        return LauncherStates(scope="Pod", told={pod.name: known for pod in self._kueue.pods})

    def assign(self, *_: object) -> None:
        """Do nothing: each pod knows its job's group."""


class World:
    """A cluster with the operator, Kueue and one queue. `has_launchers`: in the pods of jobs."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        quota: int = 2,
        check: str | None = None,
        has_launchers: bool = False,
    ) -> None:
        self.clock = clock or Clock()
        self.kueue = Kueue(self.clock, quota=quota, check=check)
        self.cluster = QueueCluster(self.kueue)
        self.errors: list[ClusterError] = []
        self.launchers = Joining(self.kueue) if has_launchers else None
        self.start_operator()

    def start_operator(self) -> None:
        """Start the operator, which then knows only what the API server has stored."""
        self.cache = JobCache()
        self.reconciler = Reconciler(
            self.cluster,
            self.cache,
            settings=SETTINGS,
            clock=self.clock,
            launchers=cast("Launchers | None", self.launchers),
        )

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Create a job, or replace its spec as a user does."""
        known = self.cluster.jobs.get(key_of(manifest)) or {}
        generation = known.get("metadata", {}).get("generation", 0) + 1
        metadata = {**manifest["metadata"], "generation": generation}
        status = {"status": known["status"]} if "status" in known else {}
        self.cluster.store_job({**manifest, "metadata": metadata, **status})

    async def reconcile(self) -> None:
        """Reconcile each job once, with what the watch has reported."""
        for key in [*self.cluster.jobs]:
            self.cache.put(self.cluster.jobs[key])
            try:
                await self.reconciler.reconcile(key)
            except ClusterError as error:
                self.errors.append(error)

    async def run(self, seconds: float = 60) -> None:
        """Let time pass: the operator and Kueue work every ten seconds."""
        end = self.clock.now + timedelta(seconds=seconds)
        while self.clock.now < end:
            await self.reconcile()
            self.kueue.settle()
            self.clock.now += _STEP

    def preempt(self, name: str = URGENT.name, pods: int = 2) -> None:
        """Have another job take the quota of so many pods."""
        urgent = workload(name, pods=pods, priority=1000)
        urgent["metadata"]["namespace"] = URGENT.namespace
        self.kueue.create_workload(urgent)

    @property
    def status(self) -> Json:
        """The job's status."""
        status: Json = self.cluster.jobs[JOB].get("status") or {}
        return status

    @property
    def workloads(self) -> dict[str, Json]:
        """All Workloads by name."""
        return {key.name: workload for key, workload in self.kueue.workloads.items()}

    def running(self) -> dict[str, str]:
        """Return the UIDs of running pods that nobody has deleted, by name."""
        return {
            key.name: pod["metadata"]["uid"]
            for key, pod in self.kueue.pods.items()
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }


class TwoClusters:
    """A manager cluster, in which users create jobs, and a worker cluster, which runs them."""

    def __init__(self, *, quota: int = 2) -> None:
        clock = Clock()
        self.manager = World(clock, quota=quota, check=CHECK)
        self.worker = World(clock, quota=quota)
        self.worker_status: Json | None = None
        """The status of the job's copy if no operator runs in the worker cluster."""
        sides = [Cluster(each.kueue, each.cluster.jobs) for each in (self.manager, self.worker)]
        for side, world in zip(sides, (self.manager, self.worker), strict=True):
            side.store_job = world.cluster.store_job
        self._multikueue = MultiKueue(*sides)

    async def run(self, seconds: float = 60) -> None:
        """Let time pass in both clusters."""
        end = self.manager.clock.now + timedelta(seconds=seconds)
        while self.manager.clock.now < end:
            await self.manager.reconcile()
            if self.worker_status is None:
                await self.worker.reconcile()
            elif copy := self.worker.cluster.jobs.get(JOB):
                copy["status"] = self.worker_status
            self._multikueue.settle()
            self.manager.clock.now += _STEP

    @property
    def workload(self) -> Json:
        """The job's only Workload in the manager cluster."""
        [workload] = self.manager.workloads.values()
        return workload
