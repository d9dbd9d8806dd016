"""Kueue evicts a job if its pods are not ready in time (`waitForPodsReady`).

The cases follow test/e2e/customconfigs/waitforpodsready_test.go of
https://github.com/kubernetes-sigs/kueue (0.17).
"""

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
START = {"timeout": "2s", "requeuingStrategy": _BACKOFF}
"""Evict jobs that have not started after two seconds."""
RECOVERY = {"timeout": "10m", "recoveryTimeout": "2s", "requeuingStrategy": _BACKOFF}
"""Evict jobs with a lost pod that is not replaced after two seconds."""


async def until_requeued(queue: Queue) -> Json:
    """Wait until Kueue has requeued the only Workload, and return it."""

    def is_requeued(all_: dict[str, Json]) -> bool:
        states = [(each.get("status") or {}).get("requeueState") or {} for each in all_.values()]
        return [state.get("count", 0) > 0 for state in states] == [True]

    [workload] = (await queue.until_workloads(is_requeued)).values()
    return workload


def evictions(workload: Json) -> dict[tuple[str, str], int]:
    """Return the number of a Workload's evictions by reason and underlying cause."""
    stats = workload["status"].get("schedulingStats") or {}
    return {
        (each["reason"], each.get("underlyingCause", "")): each["count"]
        for each in stats.get("evictions") or ()
    }


async def test_job_that_never_starts_is_deactivated(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, kueue: Kueue, queue: Queue
) -> None:
    """It keeps its Workload until then. Kueue 0.17 does not queue that Workload again even if
    somebody activates it. A new one runs.
    """
    with kueue.configured(waitForPodsReady=START):
        await jobs.create(queued_job())
        first = await until_requeued(queue)
        workloads = await queue.until_workloads(
            lambda all_: [each["spec"].get("active", True) for each in all_.values()] == [False]
        )
        [name] = workloads
        assert workloads[name]["metadata"]["uid"] == first["metadata"]["uid"]
        assert evictions(workloads[name])["PodsReadyTimeout", "WaitForStart"] == 2
        await queue.until_used(0)
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.phase, status.restarts) == ("Pending", 0)
    state = await explained(admin, jobs, lambda state: "deactivated" in state.message)
    assert f"kubectl delete workloads.kueue.x-k8s.io {name}" in state.remedy
    async with playing(kubelet):
        await queue.delete_workload(name)
        await jobs.until_phase("Running")
    assert (await jobs.status()).restarts == 0


@pytest.mark.nightly
async def test_job_whose_replacement_does_not_start_is_requeued(
    jobs: Jobs, kubelet: FakeKubelet, kueue: Kueue, queue: Queue
) -> None:
    with kueue.configured(waitForPodsReady=RECOVERY):
        async with playing(kubelet):
            await jobs.create(queued_job(**SINGLE))
            await jobs.until_phase("Running")
            before = await workload_of(queue)
        await queue.until_workloads(
            lambda all_: all(is_true(each, "PodsReady") for each in all_.values())
        )
        await kubelet.fail("job-0-1")
        requeued = await until_requeued(queue)
        assert ("PodsReadyTimeout", "WaitForRecovery") in evictions(requeued)
        async with playing(kubelet):
            await jobs.until(lambda status: status.phase == "Running" and status.disruptions == 1)
    after = await workload_of(queue)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await jobs.status()).restarts == 1
