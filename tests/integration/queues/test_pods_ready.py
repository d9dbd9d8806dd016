"""Kueue evicts jobs whose pods do not become ready in time (`waitForPodsReady`).

The ideas are from test/e2e/customconfigs/waitforpodsready_test.go of
https://github.com/kubernetes-sigs/kueue (0.17).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from ddp_operator.kube import ApiClient

from tests.cluster.kueue import Kueue
from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.conftest import playing
from tests.integration.queues.explained import explained
from tests.integration.queues.queue import SINGLE, Queue, is_true, queued_job, workload_of

pytestmark = pytest.mark.usefixtures("operator")

_BACKOFF = {"timestamp": "Eviction", "backoffBaseSeconds": 1, "backoffLimitCount": 2}


@pytest.fixture
def quick_start(kueue: Kueue) -> Iterator[None]:
    """Kueue evicts jobs that have not started after ten seconds."""
    settings = {"timeout": "10s", "requeuingStrategy": _BACKOFF}
    with kueue.configured(waitForPodsReady=settings):
        yield


@pytest.fixture
def quick_recovery(kueue: Kueue) -> Iterator[None]:
    """Kueue evicts jobs whose lost pods are not replaced at once; to start may take longer."""
    settings = {"timeout": "10m", "recoveryTimeout": "2s", "requeuingStrategy": _BACKOFF}
    with kueue.configured(waitForPodsReady=settings):
        yield


async def until_requeued(queue: Queue, times: int) -> Json:
    """Wait until Kueue has requeued the only Workload so many times, and return it."""

    def requeued(all_: dict[str, Json]) -> bool:
        states = [each.get("status", {}).get("requeueState") or {} for each in all_.values()]
        return [state.get("count") for state in states] == [times]

    [workload] = (await queue.until_workloads(requeued)).values()
    return workload


def eviction_reasons(workload: Json) -> set[tuple[Any, Any]]:
    """Return why a Workload was evicted: reasons and underlying causes."""
    stats = workload["status"].get("schedulingStats") or {}
    evictions = stats.get("evictions") or ()
    return {(each["reason"], each.get("underlyingCause")) for each in evictions}


@pytest.mark.usefixtures("quick_start")
async def test_a_job_that_never_starts_is_deactivated(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    """It keeps its Workload until then. Kueue 0.17 does not queue that one again, even if somebody
    activates it; a new one runs.
    """
    await jobs.create(queued_job())
    first = await until_requeued(queue, 1)
    assert eviction_reasons(first) == {("PodsReadyTimeout", "WaitForStart")}
    await until_requeued(queue, 2)
    found = await queue.until_workloads(
        lambda all_: [each["spec"].get("active", True) for each in all_.values()] == [False]
    )
    [name] = found
    assert found[name]["metadata"]["uid"] == first["metadata"]["uid"]
    await queue.until_used(0)
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.phase, status.restarts) == ("Pending", 0)
    state = await explained(admin, jobs, lambda state: "deactivated" in state.cause)
    assert f"kubectl delete workloads.kueue.x-k8s.io {name}" in state.remedies[-1]
    async with playing(kubelet):
        await queue.delete_workload(name)
        await jobs.until_phase("Running")
    assert (await jobs.status()).restarts == 0


@pytest.mark.usefixtures("quick_recovery")
async def test_a_job_whose_replacement_does_not_start_is_requeued(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    async with playing(kubelet):
        await jobs.create(queued_job(**SINGLE))
        await jobs.until_phase("Running")
        before = await workload_of(queue)
    await queue.until_workloads(lambda all_: all(is_true(w, "PodsReady") for w in all_.values()))
    await kubelet.fail("job-0-1")
    requeued = await until_requeued(queue, 1)
    assert ("PodsReadyTimeout", "WaitForRecovery") in eviction_reasons(requeued)
    async with playing(kubelet):
        await jobs.until(lambda status: status.phase == "Running" and status.disruptions == 1)
    after = await workload_of(queue)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await jobs.status()).restarts == 1
