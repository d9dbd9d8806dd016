"""Scenarios of MultiKueue's contract, which the model and the real MultiKueue both pass.

No operator runs: the scenarios create Workloads of jobs and give their quota back as the operator
does. Both clusters have a queue with quota for two pods, and each job has two.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import multikueue
from ddp_operator.ports import Manifest

from tests.simulation.kueue_contract import (
    Json,
    Subject,
    existing,
    give_back,
    until,
    workload,
)

STATUS: Final[Json] = {"phase": "Running", "restarts": 1, "message": "the worker's"}


class Clusters(Protocol):
    """A manager cluster, where the job and its Workload were created, and a worker cluster."""

    @property
    def manager(self) -> Subject:
        """The cluster in which the job was created."""

    @property
    def worker(self) -> Subject:
        """The cluster that runs the job."""

    @property
    def workload(self) -> str:
        """The name of the job's Workload in both clusters."""

    async def create_job(self, name: str, *, priority: int = 0) -> str:
        """Create a job and its Workload in the manager cluster; return the Workload's name."""

    async def job(self, cluster: Subject) -> Manifest | None:
        """Return the job in a cluster, or None if it does not exist there."""

    async def set_status(self, cluster: Subject, status: Manifest) -> None:
        """Replace the job's whole status in a cluster."""


async def until_copied(clusters: Clusters) -> Manifest:
    """Wait until the job's copy exists and the Workload is admitted; return the copy."""
    await until(clusters.worker, clusters.workload, Admitted="Admitted")
    await until(clusters.manager, clusters.workload, Admitted="Admitted")
    await clusters.worker.eventually(lambda: clusters.job(clusters.worker))
    copied = await clusters.job(clusters.worker)
    assert copied is not None
    return copied


async def until_deleted(clusters: Clusters, *, with_workload: bool = True) -> None:
    """Wait until the job's copy is gone, and its Workload, too."""

    async def gone() -> bool:
        remote = await clusters.worker.workload(clusters.workload)
        is_gone = remote is None or not with_workload
        return is_gone and await clusters.job(clusters.worker) is None

    await clusters.worker.eventually(gone)


async def until_status(clusters: Clusters, status: Manifest) -> None:
    """Wait until the job in the manager cluster has exactly this status."""

    async def has() -> bool:
        job = await clusters.job(clusters.manager)
        return job is not None and job.get("status") == status

    await clusters.manager.eventually(has)


async def copy_names_its_workload_and_no_manager(clusters: Clusters) -> None:
    copied = await until_copied(clusters)
    assert DDPJob.parse(copied).prebuilt_workload == clusters.workload
    assert "managedBy" not in copied["spec"]
    job = await clusters.job(clusters.manager)
    assert job is not None
    assert job["metadata"]["uid"] != copied["metadata"]["uid"]
    remote = await existing(clusters.worker, clusters.workload)
    local = await existing(clusters.manager, clusters.workload)
    assert _pods_of(remote) == _pods_of(local)
    metadata = remote["metadata"]
    assert metadata["annotations"]["ddp-operator.io/workload-of"] == job["metadata"]["name"]
    assert metadata["labels"]["kueue.x-k8s.io/multikueue-origin"]


def _pods_of(workload: Manifest) -> list[tuple[int, Json]]:
    """Return count and environment of each pod set; Kueue adds empty fields to the others."""
    return [
        (each["count"], each["template"]["spec"]["containers"][0].get("env"))
        for each in workload["spec"]["podSets"]
    ]


async def status_is_copied_as_a_whole(clusters: Clusters) -> None:
    await until_copied(clusters)
    await clusters.set_status(clusters.worker, STATUS)
    await until_status(clusters, STATUS)
    shorter = {"phase": "Running", "attempt": 2}
    await clusters.set_status(clusters.worker, shorter)
    await until_status(clusters, shorter)


async def deactivated_workload_loses_its_copy_and_keeps_quota(clusters: Clusters) -> None:
    await until_copied(clusters)
    await clusters.manager.change(clusters.workload, active=False)
    await until(clusters.manager, clusters.workload, Evicted="Deactivated")
    await until_deleted(clusters, with_workload=False)
    await until(clusters.manager, clusters.workload, QuotaReserved="QuotaReserved")
    await give_back(clusters.manager, clusters.workload)
    await until_deleted(clusters)
    await until(clusters.manager, clusters.workload, QuotaReserved=None)
    await clusters.manager.change(clusters.workload, active=True)
    await until_copied(clusters)


async def preempted_workload_keeps_its_copy_until_its_quota_is_free(clusters: Clusters) -> None:
    await until_copied(clusters)
    urgent = await clusters.create_job("urgent", priority=1000)
    await until(clusters.manager, clusters.workload, Evicted="Preempted")
    stopped = "DeactivatedDueToEvictedOnManagerCluster"
    await until(clusters.worker, clusters.workload, Evicted=stopped)
    await clusters.manager.pass_time()
    assert await clusters.job(clusters.worker) is not None
    await give_back(clusters.manager, clusters.workload)
    await until_deleted(clusters)
    await until(clusters.manager, urgent, Admitted="Admitted")


async def workload_finishes_with_the_last_status_of_its_copy(clusters: Clusters) -> None:
    await until_copied(clusters)
    await _finish_copy(clusters, {"phase": "Succeeded"})


async def workload_created_again_after_its_copy_finished_is_copied_again(
    clusters: Clusters,
) -> None:
    await until_copied(clusters)
    await _finish_copy(clusters, {"phase": "Restarting", "restarts": 1})
    job = await clusters.job(clusters.manager)
    assert job is not None
    await clusters.manager.delete_workload(clusters.workload)
    await clusters.manager.create_workload(multikueue.workload(DDPJob.parse(job), None))
    copied = await until_copied(clusters)
    assert not copied.get("status"), "a copy begins without a status"


async def _finish_copy(clusters: Clusters, status: Manifest) -> None:
    """Let the job's copy end with this status, which the job then has."""
    await clusters.set_status(clusters.worker, status)
    stored = await existing(clusters.worker, clusters.workload)
    finished = {
        **{"type": "Finished", "status": "True", "reason": "Succeeded"},
        **{"message": "Pods succeeded: 2/2.", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    }
    known = stored["status"]["conditions"]
    await clusters.worker.patch_status(clusters.workload, {"conditions": [*known, finished]})
    await until(clusters.manager, clusters.workload, Finished="Succeeded")
    await until_status(clusters, status)
    await until_deleted(clusters)


async def copy_preempted_in_its_cluster_is_queued_again(clusters: Clusters) -> None:
    """Kueue 0.17.0 does not always admit it again, although there is room: its webhook refuses to
    record the cluster, and no event follows (kubernetes-sigs/kueue#11378, mended in 0.17.4).
    """
    await until_copied(clusters)
    await clusters.worker.create_workload(workload("urgent", priority=1000))
    await until(clusters.manager, clusters.workload, Evicted="AdmissionCheck")
    await give_back(clusters.worker, clusters.workload)
    await until(clusters.worker, "urgent", Admitted="Admitted")
    await give_back(clusters.manager, clusters.workload)
    await until(clusters.manager, clusters.workload, Evicted=None, QuotaReserved="QuotaReserved")


Scenario = Callable[[Clusters], Awaitable[None]]

SCENARIOS: Final[tuple[Scenario, ...]] = (
    copy_names_its_workload_and_no_manager,
    status_is_copied_as_a_whole,
    deactivated_workload_loses_its_copy_and_keeps_quota,
    preempted_workload_keeps_its_copy_until_its_quota_is_free,
    workload_finishes_with_the_last_status_of_its_copy,
    workload_created_again_after_its_copy_finished_is_copied_again,
    copy_preempted_in_its_cluster_is_queued_again,
)
