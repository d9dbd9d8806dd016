"""Unusual pod groups of a real Kueue.

The cases are those of test/e2e/singlecluster/pod_test.go of
https://github.com/kubernetes-sigs/kueue (0.17), with a DDPJob instead of single pods:

- A group that fits is admitted, and its pods get the ResourceFlavor's node labels: here.
- Only a complete group is admitted, and a pod too many is deleted: `test_contract.py`.
- A pod that failed is replaced: `test_replacements.py`.
- A pod that was deleted before it had a node is replaced: here.
- Pods of a group may differ: here.
- A group of lower priority is preempted and returns: `test_queues.py`.
- A pod joins a group after its creation: the operator creates its pods with their group.
"""

import pytest
from ddp_operator.kube import ApiClient

from tests.good_manifests import container
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.queue import (
    CHIP,
    SINGLE,
    Queue,
    admission,
    new_queue,
    queued_job,
    until_ungated,
    workload_of,
)

pytestmark = pytest.mark.usefixtures("kueue", "operator")


async def complete(jobs: Jobs, kubelet: FakeKubelet, queue: Queue) -> None:
    """Complete all pods, and wait until the job and its Workload are finished."""
    for pod in await jobs.live_pods():
        await kubelet.succeed(pod)
    await jobs.until_phase("Succeeded")
    await queue.until_used(0)
    await queue.until_finished()


async def test_pods_get_the_node_labels_of_their_flavor(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    labels = {"example.com/kind": "on-demand"}
    queue = await new_queue(admin, jobs.namespace, nodes={"nodeLabels": labels})
    await jobs.create(queued_job())
    await until_ungated(jobs, "job-0-0", "job-0-1")
    assert all(pod["spec"]["nodeSelector"] == labels for pod in (await jobs.pods()).values())
    await complete(jobs, kubelet, queue)


@pytest.mark.nightly
async def test_pod_deleted_before_it_has_a_node_is_replaced(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await jobs.create(queued_job(**SINGLE))
    await until_ungated(jobs, "job-0-0", "job-0-1")
    await kubelet.run("job-0-0")
    before = await workload_of(queue)
    await jobs.delete_pod("job-0-1")
    await jobs.until_gone("job-0-1")
    await until_ungated(jobs, "job-0-0", "job-0-1-r1")
    assert admission(await workload_of(queue)) == admission(before)
    await kubelet.run("job-0-1-r1")
    await jobs.until_phase("Running")
    assert (await jobs.status()).restarts == 0
    await complete(jobs, kubelet, queue)


async def test_different_pods_form_one_group(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=4)
    larger = container(resources={"limits": {CHIP: 2}})
    other = {"indexes": ["2"], "template": {"spec": {"containers": [larger]}}}
    await jobs.create(queued_job(replicas=3, overrides=[other]))
    await until_ungated(jobs, "job-0-0", "job-0-1", "job-0-2")
    await queue.until_used(4)
    workload = await workload_of(queue)
    assert sorted(each["count"] for each in workload["spec"]["podSets"]) == [1, 2]
    await complete(jobs, kubelet, queue)
