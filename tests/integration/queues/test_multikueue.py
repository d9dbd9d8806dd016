"""Jobs that MultiKueue runs in another cluster: two control planes with Kueue and operator."""

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from ddp_operator.kube import NAMESPACES, SECRETS, ApiClient, Resource, load_credentials
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import AlreadyExistsError, NotFoundError

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.good_manifests import Json
from tests.integration.conftest import install_crd
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.conftest import NODE_OBJECT, playing
from tests.integration.queues.queue import (
    Queue,
    installed,
    is_true,
    new_queue,
    queued_job,
    workload_of,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("operator", "operator_elsewhere", "elsewhere_lives")

_GROUP: Final = ("kueue.x-k8s.io", "v1beta2")
_API: Final = "/".join(_GROUP)
_SETTINGS: Final = {
    "multiKueue": {"externalFrameworks": [{"name": "DDPJob.v1alpha1.ddp-operator.io"}]}
}
_NAME: Final = "elsewhere"
"""The name of everything that leads to the other cluster."""


@pytest.fixture(scope="module")
def elsewhere(control_plane: cluster.ControlPlane) -> Iterator[cluster.ControlPlane]:
    """The other control plane, with its own Kueue."""
    del control_plane  # the test is skipped there if there can be none
    with cluster.control_plane(collects_pods=True, watch_lists=False) as running:
        running.client.request("POST", "/api/v1/nodes", NODE_OBJECT)
        installed(running)
        yield running


@pytest.fixture
async def admin_elsewhere(elsewhere: cluster.ControlPlane) -> AsyncIterator[ApiClient]:
    async with ApiClient(load_credentials(kubeconfig=str(elsewhere.kubeconfig))) as client:
        yield client


@pytest.fixture
async def jobs_elsewhere(admin_elsewhere: ApiClient, namespace: str) -> Jobs:
    """The namespace of the same name in the other cluster."""
    await install_crd(admin_elsewhere)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await admin_elsewhere.request("POST", NAMESPACES.path(), body=body)
    return Jobs(admin_elsewhere, namespace)


@pytest.fixture
def kubelet_elsewhere(admin_elsewhere: ApiClient, namespace: str) -> FakeKubelet:
    return FakeKubelet(admin_elsewhere, namespace)


@pytest.fixture
async def elsewhere_lives(kubelet_elsewhere: FakeKubelet) -> AsyncIterator[None]:
    """Pods of the other cluster come to life, and end, by themselves."""
    async with playing(kubelet_elsewhere):
        yield


@pytest.fixture
def operator_elsewhere(
    elsewhere: cluster.ControlPlane, jobs_elsewhere: Jobs, tmp_path: Path
) -> Iterator[OperatorProcess]:
    namespace = jobs_elsewhere.namespace
    log = tmp_path / "log-elsewhere"
    with flawless_operator(elsewhere.kubeconfig, log, namespace=namespace) as process:
        yield process


@pytest.fixture
async def queue_elsewhere(admin_elsewhere: ApiClient, jobs_elsewhere: Jobs) -> Queue:
    return await new_queue(admin_elsewhere, jobs_elsewhere.namespace)


@pytest.fixture(scope="module", autouse=True)
def _distributing(
    control_plane: cluster.ControlPlane, kueue: Kueue, elsewhere: cluster.ControlPlane
) -> Iterator[None]:
    """Kueue gives DDPJobs to other clusters."""
    with kueue.configured(**_SETTINGS):
        yield
        for kind in ("admissionchecks", "multikueueconfigs", "multikueueclusters"):
            path = Resource(*_GROUP, kind).path(name=_NAME)
            control_plane.client.request("DELETE", path)
    del elsewhere  # which ends after that


@pytest.fixture
async def queue(
    admin: ApiClient, namespace: str, elsewhere: cluster.ControlPlane, queue_elsewhere: Queue
) -> Queue:
    """The queue of the first cluster, which leads to the other one."""
    del queue_elsewhere  # first, since jobs go there at once
    queue = await new_queue(admin, namespace)
    await _lead(admin, elsewhere.kubeconfig.read_bytes(), namespace)
    return queue


async def _lead(admin: ApiClient, kubeconfig: bytes, namespace: str) -> None:
    """Have the ClusterQueue `namespace` lead to the cluster of a kubeconfig."""

    async def create(kind: str, **spec: Any) -> Resource:
        resource = Resource(*_GROUP, f"{kind.lower()}s")
        body = {"apiVersion": _API, "kind": kind, "metadata": {"name": _NAME}, "spec": spec}
        with contextlib.suppress(AlreadyExistsError):
            await admin.request("POST", resource.path(), body=body)
        return resource

    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _NAME},
        "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
    }
    with contextlib.suppress(AlreadyExistsError):
        await admin.request("POST", SECRETS.path(namespace="kueue-system"), body=secret)
    source = {"kubeConfig": {"location": _NAME, "locationType": "Secret"}}
    await create("MultiKueueCluster", clusterSource=source)
    await create("MultiKueueConfig", clusters=[_NAME])
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": _NAME}
    checks = await create(
        "AdmissionCheck", controllerName="kueue.x-k8s.io/multikueue", parameters=parameters
    )
    seen: Json = {}

    async def active() -> bool:
        nonlocal seen
        seen = await admin.request("GET", checks.path(name=_NAME))
        return is_true(seen, "Active")

    await eventually(active, interval_seconds=0.2, describe=lambda: seen)
    path = Resource(*_GROUP, "clusterqueues").path(name=namespace)
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": _NAME}]}}
    await admin.request("PATCH", path, body={"spec": strategy}, content_type=MERGE_PATCH)


def elsewhere_job(**spec: Any) -> Json:
    """A job that MultiKueue runs."""
    return queued_job(managedBy="kueue.x-k8s.io/multikueue", **spec)


async def all_is_over(queue: Queue, queue_elsewhere: Queue) -> None:
    """Wait until the Workloads are finished, and hold quota in neither cluster."""
    await queue.until_finished()
    await queue.until_used(0)
    await queue_elsewhere.until_used(0)


async def test_a_job_runs_in_the_other_cluster(
    jobs: Jobs,
    jobs_elsewhere: Jobs,
    kubelet_elsewhere: FakeKubelet,
    queue: Queue,
    queue_elsewhere: Queue,
) -> None:
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    assert await jobs.pods() == {}
    await queue_elsewhere.until_used(2)
    [workload] = await queue.workloads()
    pods = (await jobs_elsewhere.pods()).values()
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for pod in pods} == {
        workload
    }
    for pod in await jobs_elsewhere.live_pods():
        await kubelet_elsewhere.succeed(pod)
    status = await jobs.until_phase("Succeeded")
    assert (status.restarts, status.disruptions) == (0, 0)
    await all_is_over(queue, queue_elsewhere)


async def test_a_restart_keeps_the_quota_and_a_deletion_reaches_the_other_cluster(
    jobs: Jobs,
    jobs_elsewhere: Jobs,
    kubelet_elsewhere: FakeKubelet,
    queue: Queue,
    queue_elsewhere: Queue,
) -> None:
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    before = await queue_elsewhere.workloads()
    await kubelet_elsewhere.fail("job-0-0")
    status = await jobs.until(lambda status: status.restarts == 1 and status.phase == "Running")
    assert status.disruptions == 0
    after = await queue_elsewhere.workloads()
    [uid] = {one["metadata"]["uid"] for one in before.values()}
    assert {one["metadata"]["uid"] for one in after.values()} == {uid}
    await jobs.delete()
    await eventually(lambda: _gone(jobs_elsewhere))
    await queue_elsewhere.until_used(0)
    await queue_elsewhere.until_workloads(lambda found: not found)
    await queue.until_workloads(lambda found: not found)


async def test_a_failure_is_final(
    jobs: Jobs, kubelet_elsewhere: FakeKubelet, queue: Queue, queue_elsewhere: Queue
) -> None:
    await jobs.create(elsewhere_job(restart={"maxRestarts": 0}))
    await jobs.until_phase("Running")
    await kubelet_elsewhere.fail("job-0-0")
    status = await jobs.until_phase("Failed")
    assert (status.restarts, status.reason) == (0, "MaxRestartsExceeded")
    await all_is_over(queue, queue_elsewhere)


async def test_a_job_that_ends_while_the_operator_there_is_away_is_over(
    jobs: Jobs,
    jobs_elsewhere: Jobs,
    kubelet_elsewhere: FakeKubelet,
    operator_elsewhere: OperatorProcess,
    queue: Queue,
    queue_elsewhere: Queue,
) -> None:
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    operator_elsewhere.kill()
    for pod in await jobs_elsewhere.live_pods():
        await kubelet_elsewhere.succeed(pod)
    status = await jobs.until_phase("Succeeded")
    assert status.message.startswith(
        "Kueue finished the Workload, the job's last status is missing"
    )
    await all_is_over(queue, queue_elsewhere)


@pytest.mark.parametrize("seems_over", [False, True])
async def test_a_suspended_job_leaves_the_other_cluster_until_it_is_resumed(
    jobs: Jobs, jobs_elsewhere: Jobs, queue: Queue, queue_elsewhere: Queue, seems_over: bool
) -> None:
    """Also if MultiKueue sees the end of its pods before that of the job there."""
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    await jobs.set_spec(suspend=True)
    await queue.until_used(0)
    await queue_elsewhere.until_used(0)
    await eventually(lambda: _gone(jobs_elsewhere))
    if seems_over:
        await queue.finish(await workload_of(queue))
    await jobs.set_spec(suspend=False)
    await _until_it_runs_again(jobs_elsewhere, queue_elsewhere)


async def test_a_job_that_is_evicted_there_queues_again(
    jobs: Jobs, jobs_elsewhere: Jobs, queue: Queue, queue_elsewhere: Queue
) -> None:
    """MultiKueue deletes the copy once the quota here is free, unless Kueue has admitted the
    Workload again before MultiKueue looks: then the copy waits there.
    """
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    await queue_elsewhere.drain()
    await queue.until_workloads(lambda found: not _all_admitted(found))
    await queue_elsewhere.until_used(0)
    await queue_elsewhere.reopen()
    await queue.until_workloads(_all_admitted)
    await queue_elsewhere.until_used(2)
    status = await jobs_elsewhere.until_phase("Running")
    assert (status.restarts, await jobs.pods()) == (0, {})


async def test_a_job_that_is_evicted_here_queues_again(
    jobs: Jobs, jobs_elsewhere: Jobs, queue: Queue, queue_elsewhere: Queue
) -> None:
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    first = (await jobs_elsewhere.get())["metadata"]["uid"]
    await queue.drain()
    await eventually(lambda: _gone(jobs_elsewhere))
    await queue.reopen()
    await _until_it_runs_again(jobs_elsewhere, queue_elsewhere)
    assert (await jobs_elsewhere.get())["metadata"]["uid"] != first
    assert await jobs.pods() == {}


async def _until_it_runs_again(jobs_elsewhere: Jobs, queue_elsewhere: Queue) -> None:
    """Wait until MultiKueue has made a new copy, and it runs with quota. A first copy may go again,
    with the Workload that is over.
    """

    async def runs() -> bool:
        with contextlib.suppress(NotFoundError):
            await jobs_elsewhere.until_phase("Running")
            return True
        return False

    await eventually(runs)
    await queue_elsewhere.until_used(2)


def _all_admitted(workloads: dict[str, Json]) -> bool:
    return all(is_true(each, "Admitted") for each in workloads.values())


async def _gone(jobs: Jobs) -> bool:
    return not (await jobs.exists() or await jobs.pods())
