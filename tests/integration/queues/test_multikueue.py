"""Jobs that MultiKueue runs in another cluster: two control planes with Kueue and operator."""

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import multikueue
from ddp_operator.kube import NAMESPACES, SECRETS, ApiClient, Resource, load_credentials
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import AlreadyExistsError, Manifest, NotFoundError

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.good_manifests import Json
from tests.integration.conftest import install_crd
from tests.integration.jobs import JOBS, Jobs
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
from tests.integration.queues.real_kueue import RealKueue
from tests.simulation.kueue_contract import Subject
from tests.simulation.kueue_multikueue_contract import SCENARIOS, Scenario
from tests.waiting import eventually

WITH_OPERATORS = pytest.mark.usefixtures("operator", "operator_elsewhere", "elsewhere_lives")

_GROUP: Final = ("kueue.x-k8s.io", "v1beta2")
_API: Final = "/".join(_GROUP)
_SETTINGS: Final = {
    "multiKueue": {"externalFrameworks": [{"name": "DDPJob.v1alpha1.ddp-operator.io"}]}
}
_NAME: Final = "elsewhere"
"""The name of MultiKueue's objects for the other cluster."""


@pytest.fixture(scope="module")
def elsewhere(control_plane: cluster.ControlPlane) -> Iterator[cluster.ControlPlane]:
    """Another control plane with its own Kueue."""
    del control_plane  # skips the tests on a machine without Kubernetes' programs
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
    """Pods of the other cluster start and end by themselves."""
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
    del elsewhere  # ends after this fixture


@pytest.fixture
async def queue(
    admin: ApiClient, namespace: str, elsewhere: cluster.ControlPlane, queue_elsewhere: Queue
) -> Queue:
    """The queue of the first cluster, which sends jobs to the other one."""
    del queue_elsewhere  # created first, because jobs go there at once
    queue = await new_queue(admin, namespace)
    await _connect(admin, elsewhere.kubeconfig.read_bytes(), namespace)
    return queue


async def _connect(admin: ApiClient, kubeconfig: bytes, namespace: str) -> None:
    """Have the ClusterQueue `namespace` send its jobs to the cluster of a kubeconfig."""

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
    check: Json = {}

    async def is_active() -> bool:
        nonlocal check
        check = await admin.request("GET", checks.path(name=_NAME))
        return is_true(check, "Active")

    await eventually(is_active, interval_seconds=0.1, describe=lambda: check)
    path = Resource(*_GROUP, "clusterqueues").path(name=namespace)
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": _NAME}]}}
    await admin.request("PATCH", path, body={"spec": strategy}, content_type=MERGE_PATCH)


def elsewhere_job(**spec: Any) -> Json:
    """A job that MultiKueue runs."""
    return queued_job(managedBy="kueue.x-k8s.io/multikueue", **spec)


async def until_finished(queue: Queue, queue_elsewhere: Queue) -> None:
    """Wait until the Workloads are finished, and hold quota in neither cluster."""
    await queue.until_finished()
    await queue.until_used(0)
    await queue_elsewhere.until_used(0)


class RealClusters:
    """Implements `kueue_multikueue_contract.Clusters`."""

    def __init__(self, manager: RealKueue, worker: RealKueue) -> None:
        self.manager, self.worker = manager, worker
        self.workload = ""

    async def create_job(self, name: str, *, priority: int = 0) -> str:
        jobs = Jobs(self.manager.client, self.manager.namespace)
        stored = await jobs.create(elsewhere_job(), name=name)
        made = multikueue.workload(DDPJob.parse(stored), None)
        made["spec"]["priority"] = priority
        await self.manager.create_workload(made)
        return str(made["metadata"]["name"])

    async def job(self, cluster: Subject) -> Manifest | None:
        assert isinstance(cluster, RealKueue)
        try:
            return await Jobs(cluster.client, cluster.namespace).get()
        except NotFoundError:
            return None

    async def set_status(self, cluster: Subject, status: Manifest) -> None:
        assert isinstance(cluster, RealKueue)
        job = await self.job(cluster)
        path = JOBS.path(namespace=cluster.namespace, name="job", subresource="status")
        await cluster.client.request("PUT", path, body={**(job or {}), "status": status})


@pytest.fixture
async def clusters(
    admin: ApiClient, admin_elsewhere: ApiClient, kubelet: FakeKubelet, jobs: Jobs
) -> RealClusters:
    """A job in the first cluster, with the Workload that the operator would create."""
    clusters = RealClusters(
        RealKueue(admin, jobs.namespace, kubelet),
        RealKueue(admin_elsewhere, jobs.namespace, kubelet),
    )
    clusters.workload = await clusters.create_job("job")
    return clusters


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_real_multikueue(clusters: RealClusters, scenario: Scenario) -> None:
    """The model in `tests/simulation` passes the same scenarios."""
    await scenario(clusters)


@WITH_OPERATORS
async def test_job_runs_in_the_other_cluster(
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
    await until_finished(queue, queue_elsewhere)


@pytest.mark.nightly
@WITH_OPERATORS
async def test_restart_keeps_quota_and_deletion_reaches_the_other_cluster(
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
    await queue_elsewhere.until_workloads(lambda all_: not all_)
    await queue.until_workloads(lambda all_: not all_)


@pytest.mark.nightly
@WITH_OPERATORS
async def test_job_that_ends_while_its_operator_is_away_succeeds(
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
    await until_finished(queue, queue_elsewhere)


@pytest.mark.nightly
@WITH_OPERATORS
@pytest.mark.parametrize("finished", [False, True], ids=["", "finished"])
async def test_suspended_job_leaves_the_other_cluster_until_resumed(
    jobs: Jobs, jobs_elsewhere: Jobs, queue: Queue, queue_elsewhere: Queue, *, finished: bool
) -> None:
    """The Workload is finished if MultiKueue sees the pods end before the job's deletion there."""
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    await jobs.set_spec(suspend=True)
    await queue.until_used(0)
    await queue_elsewhere.until_used(0)
    await eventually(lambda: _gone(jobs_elsewhere))
    if finished:
        await queue.finish(await workload_of(queue))
    await jobs.set_spec(suspend=False)
    await _until_it_runs_again(jobs_elsewhere, queue_elsewhere)


@WITH_OPERATORS
async def test_job_evicted_in_the_other_cluster_queues_again(
    jobs: Jobs, jobs_elsewhere: Jobs, queue: Queue, queue_elsewhere: Queue
) -> None:
    """MultiKueue deletes the copy when the quota here is free. If Kueue admits the Workload again
    before MultiKueue looks, the copy waits there.
    """
    await jobs.create(elsewhere_job())
    await jobs.until_phase("Running")
    await queue_elsewhere.drain()
    await queue.until_workloads(lambda all_: not _all_admitted(all_))
    await queue_elsewhere.until_used(0)
    await queue_elsewhere.reopen()
    await queue.until_workloads(_all_admitted)
    await queue_elsewhere.until_used(2)
    status = await jobs_elsewhere.until_phase("Running")
    assert (status.restarts, await jobs.pods()) == (0, {})


async def _until_it_runs_again(jobs_elsewhere: Jobs, queue_elsewhere: Queue) -> None:
    """Wait until MultiKueue has made a new copy and it runs with quota. MultiKueue may delete a
    first copy together with the finished Workload.
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
