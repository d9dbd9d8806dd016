"""Jobs that MultiKueue runs in another cluster, over the models of Kueue and MultiKueue."""

from typing import Any

import pytest
from ddp_operator.ports import Node

from tests.simulation.kueue import Json, condition, holds
from tests.simulation.kueue_world import URGENT, TwoClusters
from tests.unit.engine.test_delegation import elsewhere

_RUNS = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
_RESTARTED_IN_PLACE: Json = {
    **_RUNS,
    "world": {"generation": 1, "members": "0-1"},
    "bookkeeping": {"launcher": "InPlace"},
}
_ELASTIC: Json = {**_RUNS, "world": {"generation": 1, "members": "0-1"}}
_AVOIDS_A_NODE: Json = {**_RUNS, "attempt": 1, "excludedNodes": ["gpu-7"]}

LATER_STATUSES = pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({}, _RESTARTED_IN_PLACE),
        ({"elastic": {"minReplicas": 1}}, _ELASTIC),
        ({}, _AVOIDS_A_NODE),
    ],
    ids=["restarted in place", "elastic", "avoids a node"],
)
"""Statuses of the worker cluster that change the pods of the next attempt."""


async def started(**spec: Any) -> TwoClusters:
    """Return two clusters in which the job runs."""
    clusters = TwoClusters(quota=spec.get("replicas", 2))
    clusters.manager.apply(elsewhere(**spec))
    await clusters.run()
    assert clusters.manager.status["phase"] == "Running"
    return clusters


async def with_status(spec: Json, status: Json) -> TwoClusters:
    """Return two clusters in which the job runs and its copy has this status."""
    clusters = await started(**spec)
    clusters.worker_status = status
    await clusters.run()
    assert clusters.manager.status == status
    return clusters


def job_workload(clusters: TwoClusters) -> Json:
    """Return the job's Workload in the manager cluster."""
    return clusters.manager.workloads["train-u1-0"]


async def test_suspended_job_leaves_worker_cluster_and_returns() -> None:
    clusters = await started()
    clusters.manager.apply(elsewhere(suspend=True))
    await clusters.run()
    assert not clusters.worker.cluster.jobs
    assert not clusters.worker.running()
    assert clusters.manager.kueue.used == 0
    clusters.manager.apply(elsewhere(suspend=False))
    await clusters.run()
    assert len(clusters.worker.running()) == 2


@LATER_STATUSES
async def test_suspended_job_leaves_worker_cluster(spec: Json, status: Json) -> None:
    clusters = await with_status(spec, status)
    clusters.manager.apply(elsewhere(suspend=True, **spec))
    await clusters.run(600)
    assert not clusters.manager.errors
    assert not clusters.worker.cluster.jobs


async def test_job_that_lost_a_gpu_is_suspended() -> None:
    clusters = TwoClusters()
    clusters.worker.cluster.node_list = [Node(f"node-{number:04}", {}) for number in range(20)]
    clusters.manager.apply(elsewhere())
    await clusters.run()
    pod = next(iter(clusters.worker.kueue.pods))
    message = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    clusters.worker.kueue.end_pod(pod, exit_code=1, message=message)
    await clusters.run(120)
    assert clusters.manager.status["phase"] == "Running"
    clusters.manager.apply(elsewhere(suspend=True))
    await clusters.run(600)
    assert not clusters.worker.running()


async def test_preempted_job_gives_quota_back_and_returns() -> None:
    clusters = await started()
    clusters.manager.preempt()
    await clusters.run()
    assert holds(clusters.manager.workloads["urgent"], "QuotaReserved")
    assert not clusters.worker.cluster.jobs
    clusters.manager.kueue.delete_workload(URGENT)
    await clusters.run()
    assert len(clusters.worker.running()) == 2


@LATER_STATUSES
async def test_preempted_job_gives_quota_back_after_operator_restart(
    spec: Json, status: Json
) -> None:
    clusters = await with_status(spec, status)
    clusters.manager.start_operator()
    clusters.manager.preempt()
    await clusters.run(600)
    assert condition(job_workload(clusters), "Evicted")["reason"] == "Preempted"
    assert holds(clusters.manager.workloads["urgent"], "QuotaReserved")


async def test_job_preempted_in_worker_cluster_queues_again() -> None:
    clusters = await started()
    first = clusters.worker.running()
    clusters.worker.preempt()
    await clusters.run()
    assert holds(clusters.worker.workloads["urgent"], "Admitted")
    assert not clusters.worker.running()
    clusters.worker.kueue.delete_workload(URGENT)
    await clusters.run()
    assert len(clusters.worker.running()) == 2
    assert clusters.worker.running().items().isdisjoint(first.items())


async def test_preempted_copy_that_exits_with_0_is_no_success() -> None:
    clusters = await started()
    clusters.worker.kueue.exit_code_on_sigterm = 0
    clusters.worker.preempt()
    await clusters.run()
    assert holds(clusters.worker.workloads["urgent"], "Admitted")
    clusters.worker.kueue.delete_workload(URGENT)
    await clusters.run(600)
    assert clusters.manager.status["phase"] == "Running"
    assert len(clusters.worker.running()) == 2


async def test_deactivated_workload_stays_inactive() -> None:
    clusters = await started()
    job_workload(clusters)["spec"]["active"] = False
    await clusters.run(600)
    assert not job_workload(clusters)["spec"]["active"]
    assert not clusters.worker.cluster.jobs


@pytest.mark.parametrize("cause", ["operator starts", "user edits the spec"])
async def test_deactivated_workload_stays_inactive_when(cause: str) -> None:
    clusters = await started()
    job_workload(clusters)["spec"]["active"] = False
    await clusters.run()
    if cause == "operator starts":
        clusters.manager.start_operator()
    else:
        clusters.manager.apply(elsewhere(ttlSecondsAfterFinished=60))
    await clusters.run()
    assert not job_workload(clusters)["spec"]["active"]
    assert not clusters.worker.cluster.jobs


async def test_job_edited_while_suspended_returns_with_its_new_pods() -> None:
    clusters = await started()
    clusters.manager.apply(elsewhere(suspend=True))
    await clusters.run()
    clusters.manager.apply(elsewhere(suspend=True, replicas=1))
    await clusters.run()
    assert not clusters.worker.running()
    clusters.manager.apply(elsewhere(replicas=1))
    await clusters.run()
    assert len(clusters.worker.running()) == clusters.manager.kueue.used == 1
    assert not clusters.manager.errors


async def test_spec_that_changes_while_the_job_runs_leaves_it_alone() -> None:
    clusters = await started()
    before = clusters.worker.running()
    clusters.manager.apply(elsewhere(nprocPerNode=2))
    await clusters.run(600)
    assert clusters.worker.running() == before
    assert not clusters.manager.errors


async def test_job_keeps_its_failures_when_it_moves() -> None:
    clusters = await started(restart={"scope": "Pod"})
    clusters.worker.kueue.end_pod(next(iter(clusters.worker.kueue.pods)), exit_code=3)
    await clusters.run(120)
    assert clusters.manager.status["restarts"] == 1
    clusters.manager.start_operator()
    clusters.manager.preempt()
    await clusters.run()
    assert not clusters.worker.running()
    clusters.manager.kueue.delete_workload(URGENT)
    await clusters.run(120)
    assert len(clusters.worker.running()) == 2
    status = clusters.manager.status
    assert (status["phase"], status["restarts"]) == ("Running", 1)
    assert [failure["exitCode"] for failure in status["failures"]] == [3]


async def test_copy_that_lost_its_place_queues_again_in_manager_cluster() -> None:
    clusters = await started(restart={"scope": "Pod"})
    pod = next(iter(clusters.worker.kueue.pods))
    clusters.worker.kueue.delete_pod(pod)
    clusters.worker.kueue.end_pod(pod, exit_code=0)  # as a script that saves and exits on SIGTERM
    await clusters.run(600)
    assert len(clusters.worker.running()) == 2
    status = clusters.manager.status
    assert (status["phase"], status["attempt"], status["restarts"]) == ("Running", 0, 0)
    assert [failure["pod"] for failure in status["failures"]] == [pod.name]
    assert not holds(job_workload(clusters), "Finished")
    assert (clusters.manager.kueue.used, clusters.worker.kueue.used) == (2, 2)


async def test_failed_copy_ends_the_job() -> None:
    clusters = await started(restart={"maxRestarts": 0})
    clusters.worker.kueue.end_pod(next(iter(clusters.worker.kueue.pods)), exit_code=1)
    await clusters.run()
    assert clusters.manager.status["phase"] == "Failed"
    assert clusters.manager.status["failures"][0]["exitCode"] == 1
    assert holds(job_workload(clusters), "Finished")
    assert (clusters.manager.kueue.used, clusters.worker.kueue.used) == (0, 0)
