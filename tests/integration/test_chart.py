"""The chart on a real API server: installed, tested, upgraded, uninstalled and installed again.

The server is used by these tests alone, because its CRD belongs to a release.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import helm_python as helm
import pytest
from ddp_operator.kube import PODS, ApiClient, load_credentials
from ddp_operator.ports import NotFoundError

from tests import cluster
from tests.good_manifests import Json
from tests.integration.conftest import CRDS
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet, start
from tests.integration.releases import Release
from tests.skipping import skip_or_fail
from tests.waiting import eventually

CRD = f"{CRDS}/ddpjobs.ddp-operator.io"
TEST_POD = "ddp-operator-test"
JOB_NAMESPACE = "default"
"""Of the job that `helm test` creates."""


@pytest.fixture(scope="module")
def server() -> Iterator[cluster.ControlPlane]:
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.control_plane(controllers=True, scheduler=False))
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("API SERVER", reason)
        yield running


@pytest.fixture
async def admin(server: cluster.ControlPlane) -> AsyncIterator[ApiClient]:
    async with ApiClient(load_credentials(kubeconfig=str(server.kubeconfig))) as client:
        yield client


@pytest.fixture
async def release(server: cluster.ControlPlane, admin: ApiClient) -> AsyncIterator[Release]:
    """A release that is not installed; nothing is left at the end."""
    release = Release(server.kubeconfig, admin, "ddp-operator")
    yield release
    with contextlib.suppress(helm.HelmError):
        await release.uninstall()
    await remove_crd(admin)


async def remove_crd(admin: ApiClient) -> None:
    with contextlib.suppress(NotFoundError):
        await admin.request("DELETE", CRD)

    async def gone() -> bool:
        return await find_crd(admin) is None

    await eventually(gone, interval_seconds=0.05)


async def find_crd(admin: ApiClient) -> Json | None:
    try:
        found: Json = await admin.request("GET", CRD)
    except NotFoundError:
        return None
    return found


async def uids(jobs: Jobs) -> dict[str, str]:
    """Return the UIDs of the job's pods by name, and of the job under an empty name."""
    found = {name: pod["metadata"]["uid"] for name, pod in (await jobs.pods()).items()}
    return {**found, "": (await jobs.get())["metadata"]["uid"]}


async def test_upgrade_rollback_and_uninstall_keep_the_jobs(
    release: Release, admin: ApiClient, namespace: str, tmp_path: Path
) -> None:
    jobs, kubelet = Jobs(admin, namespace), FakeKubelet(admin, namespace)
    await release.install()
    crd = await find_crd(admin)
    assert crd
    rights = await release.kubeconfig_of("ddp-operator", tmp_path)
    arguments = await release.arguments()
    async with release.operator(rights):
        await start(jobs, kubelet)
        before = await uids(jobs)
        assert before.keys() == {"job-0-0", "job-0-1", ""}
        await release.upgrade({"logFormat": "json", "replicas": 3})
        deployment = await release.deployment()
        assert deployment["spec"]["replicas"] == 3
        assert await release.arguments() == [*arguments, "--log-format=json"]
        await release.rollback()
        assert await release.arguments() == arguments
        assert await uids(jobs) == before
    await release.uninstall()
    with pytest.raises(NotFoundError):
        await release.deployment()
    # Jobs and pods stay as long as the CRD does.
    assert await uids(jobs) == before
    await release.install()
    found = await find_crd(admin)
    assert found
    assert found["metadata"]["uid"] == crd["metadata"]["uid"]
    rights = await release.kubeconfig_of("ddp-operator", tmp_path)
    async with release.operator(rights):
        for pod in ("job-0-0", "job-0-1"):
            await kubelet.succeed(pod)
        await jobs.until_phase("Succeeded")
        assert await uids(jobs) == before
    await release.upgrade({"crds": {"keep": False}})
    await release.uninstall()

    async def gone() -> bool:
        return await find_crd(admin) is None

    await eventually(gone, interval_seconds=0.05)


async def test_helm_test_runs_a_job_to_its_end(
    release: Release, admin: ApiClient, tmp_path: Path
) -> None:
    await release.install()
    kubelet, tester = FakeKubelet(admin, JOB_NAMESPACE), FakeKubelet(admin, release.namespace)
    rights = await release.kubeconfig_of("ddp-operator", tmp_path)
    async with release.operator(rights):
        trying = asyncio.create_task(release.test())
        pod: Json = {}

        async def created() -> bool:
            nonlocal pod
            with contextlib.suppress(NotFoundError):
                path = PODS.path(namespace=release.namespace, name=TEST_POD)
                pod = await admin.request("GET", path)
            return bool(pod)

        await eventually(created, interval_seconds=0.05)
        ended = asyncio.create_task(run_pod(pod, await release.kubeconfig_of(TEST_POD, tmp_path)))
        name = await only_job(admin, JOB_NAMESPACE)
        jobs = Jobs(admin, JOB_NAMESPACE)
        ranks = (f"{name}-0-0", f"{name}-0-1")
        await jobs.until_pods(*ranks, name=name)
        for rank in ranks:
            await kubelet.run(rank)
            await kubelet.succeed(rank)
        refused, *_, succeeded, reconciled = (await ended).splitlines()
        assert refused.startswith("an invalid DDPJob is refused: ")
        assert "spec.replicas" in refused
        assert succeeded == f"{name}: Succeeded: all 2 pods completed"
        assert reconciled.startswith("a valid DDPJob was reconciled")
        await tester.succeed(TEST_POD)
        await trying
        assert not await jobs.exists(name)


async def run_pod(pod: Json, kubeconfig: Path) -> str:
    """Run a pod's command as a process until it succeeds; return its output."""
    [container] = pod["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *container["command"][1:],
        env={**os.environ, **given, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(180):
            out, errors = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def only_job(admin: ApiClient, namespace: str) -> str:
    """Wait until there is one job, and return its name."""
    names: list[str] = []

    async def there() -> bool:
        answer = await admin.request("GET", JOBS.path(namespace=namespace))
        names[:] = [item["metadata"]["name"] for item in answer["items"]]
        return len(names) == 1

    await eventually(there, interval_seconds=0.05)
    return names[0]


async def test_objects_of_all_values_are_admitted(release: Release) -> None:
    """Leave out values that need a later server or a Prometheus operator."""
    terms = [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    values: Json = {
        "image": {"registry": "r.example", "digest": f"sha256:{'0' * 64}"},
        "progressPollSeconds": 2.5,
        "logFormat": "json",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "affinity": {"nodeAffinity": required},
        "priorityClassName": "system-cluster-critical",
        "networkPolicy": {"enabled": False},
        "metrics": {"auth": {"enabled": True}},
        "dranet": True,
        "computeDomains": True,
        "gangs": True,
        "multikueue": True,
        "sideCars": {"tcpx": "m.example/a:1"},
        "extraLabels": {"team": "sre"},
        "extraAnnotations": {"example.com/why": "because"},
        "extraArgs": ["--verbose"],
        "extraEnv": [{"name": "A", "value": "1"}],
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
        ],
    }
    values["image"]["pullSecrets"] = [{"name": "pull"}]
    await release.install(values)
    pod = (await release.deployment())["spec"]["template"]
    assert pod["spec"]["affinity"] == values["affinity"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    [container] = pod["spec"]["containers"]
    assert container["image"] == f"r.example/ddp-operator@sha256:{'0' * 64}"
    assert container["args"][-1] == "--verbose"
    await release.upgrade({**values, "metrics": {}})
    assert "volumes" not in (await release.deployment())["spec"]["template"]["spec"]
