"""Pod groups of a real Kueue whose pods are not as usual.

The cases are those of test/e2e/singlecluster/pod_test.go of
https://github.com/kubernetes-sigs/kueue (0.17), with a DDPJob in the place of single pods:

- A group that fits is admitted, and its pods get what the ResourceFlavor asks of nodes: here.
- Only a complete group is admitted; an incomplete one can be deleted: here.
- A pod that failed is replaced: `test_replacements.py`. A pod too many is deleted: here.
- A pod that was deleted before it had a node is replaced: here.
- Pods of a group may differ: here.
- A group of lower priority is preempted and returns: `test_queues.py`.
- A pod joins a group after its creation: the operator creates its pods with their group.
"""

import pytest
from ddp_operator.kube import PODS, ApiClient
from ddp_operator.ports import NotFoundError

from tests.good_manifests import Json, container
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
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "operator")


async def complete(jobs: Jobs, kubelet: FakeKubelet, queue: Queue) -> None:
    """Complete all pods; the job has succeeded and its Workload is finished."""
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


async def set_pod_quota(admin: ApiClient, namespace: str, pods: int | None) -> None:
    """Let a namespace have so many pods; None: any number."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    if pods is None:
        await admin.request("DELETE", f"{path}/few")
        return
    metadata = {"name": "few", "namespace": namespace}
    spec = {"hard": {"pods": str(pods)}}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
    await admin.request("POST", path, body=body)

    async def in_force() -> bool:
        return "used" in ((await admin.request("GET", f"{path}/few")).get("status") or {})

    await eventually(in_force, interval_seconds=0.1)


@pytest.mark.parametrize("deleted", [False, True], ids=["completed", "deleted"])
async def test_an_incomplete_group_is_not_admitted(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, *, deleted: bool
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=3)
    await set_pod_quota(admin, jobs.namespace, 2)
    await jobs.create(queued_job(replicas=3))
    await jobs.until(lambda status: status.reason == "PodsForbidden")
    pods = (await jobs.pods()).values()
    assert all("schedulingGates" in pod["spec"] for pod in pods)
    assert (len(pods), await queue.used()) == (2, 0)
    if deleted:
        names = await jobs.live_pods()
        await jobs.delete()
        await jobs.collect()
        await jobs.until_gone(*names)
        assert not await queue.workloads()
        await set_pod_quota(admin, jobs.namespace, None)
        await jobs.create(queued_job(replicas=3))
    else:
        await set_pod_quota(admin, jobs.namespace, None)
    await until_ungated(jobs, "job-0-0", "job-0-1", "job-0-2")
    await complete(jobs, kubelet, queue)


@pytest.mark.usefixtures("life")
async def test_a_pod_too_many_is_deleted(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    """Somebody copies a pod of the group."""
    await jobs.create(queued_job(**SINGLE))
    await jobs.until_phase("Running")
    before = await workload_of(queue)
    copied = (await jobs.pods())["job-0-1"]
    group = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name")
    kept = ("kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/role-hash")
    metadata: Json = {
        "name": "copy",
        "labels": {key: copied["metadata"]["labels"][key] for key in group},
        "annotations": {key: copied["metadata"]["annotations"][key] for key in kept},
    }
    spec = {"containers": [container(resources={"limits": {CHIP: 1}})], "restartPolicy": "Never"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    await admin.request("POST", PODS.path(namespace=jobs.namespace), body=body)

    async def gone() -> bool:
        try:
            await admin.request("GET", PODS.path(namespace=jobs.namespace, name="copy"))
        except NotFoundError:
            return True
        return False

    await eventually(gone, interval_seconds=0.1)
    assert await jobs.live_pods() == {"job-0-0", "job-0-1"}
    status = await jobs.status()
    assert (status.phase, status.restarts, status.disruptions) == ("Running", 0, 0)
    assert admission(await workload_of(queue)) == admission(before)
    await complete(jobs, kubelet, queue)


async def test_a_pod_that_is_deleted_before_it_has_a_node_is_replaced(
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


async def test_pods_that_differ_form_one_group(
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
