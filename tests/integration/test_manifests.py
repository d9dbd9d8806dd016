"""Good and bad manifests as the operator judges them, with its messages.

The CRD here has no CEL rules, as for jobs from before a rule; `test_crd_rules.py` tests the API
server's rules.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest
from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import PODS, ApiClient, Resource, check_served, load_credentials

from tests import cluster
from tests.bad_manifests import BAD_MANIFESTS
from tests.good_manifests import EXAMPLES, GOOD_MANIFESTS, Json, container, job, template
from tests.integration import nvidia_driver, pod_groups
from tests.integration.conftest import change_crd, install_crd
from tests.integration.jobs import JOBS, Jobs
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures(
    "without_rules", "with_gangs", "with_domains", "shared_operator"
)


@pytest.fixture(scope="module")
def without_rules(control_plane: cluster.ControlPlane) -> Iterator[None]:
    """Make the API server ignore the CRD's rules."""

    async def serve(*, with_rules: bool) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            await install_crd(client)
            await change_crd(client, with_rules=with_rules)

    asyncio.run(serve(with_rules=False))
    yield
    asyncio.run(serve(with_rules=True))


@pytest.fixture(scope="module")
def with_gangs(control_plane: cluster.ControlPlane) -> Iterator[None]:
    """Make the API server serve all PodGroups, as where all schedulers are installed."""

    async def for_each(act: Callable[[ApiClient, Resource], Awaitable[None]]) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            for resource in (pod_groups.COSCHEDULING, pod_groups.KAI):
                await act(client, resource)

    asyncio.run(for_each(pod_groups.install))
    yield
    asyncio.run(for_each(pod_groups.remove))


@pytest.fixture(scope="module")
def with_domains(control_plane: cluster.ControlPlane) -> Iterator[None]:
    """Make the API server serve ComputeDomains, as where NVIDIA's driver is installed."""

    async def act(action: Callable[[ApiClient], Awaitable[None]]) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            await action(client)

    asyncio.run(act(nvidia_driver.install_domains))
    yield
    asyncio.run(act(lambda client: pod_groups.remove(client, nvidia_driver.DOMAINS)))


NATIVE_GANG = "elastic-gang"
"""The example whose PodGroup only Kubernetes 1.37 and later serve."""
Listed = Callable[[Resource], Awaitable[list[Json]]]


@pytest.fixture
def listed(admin: ApiClient, namespace: str) -> Listed:
    """Return all objects of a kind in the test's namespace."""

    async def items(resource: Resource) -> list[Json]:
        answer = await admin.request("GET", resource.path(namespace=namespace))
        return list(answer["items"])

    return items


async def until_phase_of_each(
    listed: Listed, phase: str, names: Iterable[str]
) -> dict[str, DDPJobStatus]:
    """Wait until the operator has written a status with this phase for each job; return all."""
    statuses: dict[str, DDPJobStatus] = {}

    def waiting() -> set[str]:
        return {
            name for name in names if statuses[name].phase != phase or not statuses[name].reason
        }

    async def all_are_in_it() -> bool:
        statuses.update(
            (stored["metadata"]["name"], DDPJobStatus.model_validate(stored.get("status") or {}))
            for stored in await listed(JOBS)
        )
        return not waiting()

    await eventually(all_are_in_it, interval_seconds=0.2, describe=waiting)
    return statuses


async def pods_by_job(listed: Listed) -> dict[str, set[str]]:
    pods: dict[str, set[str]] = defaultdict(set)
    for pod in await listed(PODS):
        pods[pod["metadata"]["labels"][LABEL_JOB_NAME]].add(pod["metadata"]["name"])
    return pods


async def test_each_good_manifest_gets_its_pods(
    admin: ApiClient, jobs: Jobs, listed: Listed
) -> None:
    expected = {}
    suspended, elsewhere = set(), set()
    native = await check_served(admin, pod_groups.NATIVE)
    examples = [manifest for name, manifest in EXAMPLES.items() if native or name != NATIVE_GANG]
    for number, manifest in enumerate([*GOOD_MANIFESTS.values(), *examples]):
        name = f"good-{number}" if manifest["metadata"]["name"] == "job" else None
        stored = await jobs.create(manifest, name=name)
        name, spec = stored["metadata"]["name"], stored["spec"]
        if DDPJob.parse(stored).spec.managed_elsewhere:  # and the operator does nothing
            elsewhere.add(name)
        elif spec["suspend"]:
            suspended.add(name)
        else:
            expected[name] = {f"{name}-0-{index}" for index in range(_pods_at_first(spec))}
    await until_phase_of_each(listed, "Pending", expected)
    statuses = await until_phase_of_each(listed, "Suspended", suspended)
    assert {statuses[name].observed_generation for name in elsewhere} == {0}

    async def all_pods_exist() -> bool:
        return await pods_by_job(listed) == expected

    await eventually(all_pods_exist, interval_seconds=0.2)


async def test_bad_manifests_fail_with_messages_while_a_good_job_starts(
    jobs: Jobs, listed: Listed
) -> None:
    accepted = [bad for bad in BAD_MANIFESTS if bad.refused_by != "schema"]
    bad_jobs = {}
    for number, bad in enumerate(accepted):
        # Some manifests are bad because of their names.
        name = f"bad-{number}" if bad.manifest["metadata"]["name"] == "job" else None
        bad_jobs[(await jobs.create(bad.manifest, name=name))["metadata"]["name"]] = bad
    assert len(bad_jobs) == len(accepted) >= 100
    await jobs.create(job("good", replicas=2))
    await jobs.until_pods("good-0-0", "good-0-1", name="good")
    assert (await jobs.until_phase("Pending", "good")).reason == "PodsStarting"

    statuses = await until_phase_of_each(listed, "Failed", bad_jobs)
    for name, bad in bad_jobs.items():
        status = statuses[name]
        reason = "InvalidSpec" if bad.refused_by == "cel" else "InvalidPodTemplate"
        assert status.reason == reason, bad.name
        assert bad.says in status.message, bad.name
        assert status.observed_generation == 1
        assert status.completion_time is not None
    for name in list(bad_jobs)[::20]:
        assert bad_jobs[name].says in await jobs.until_told(statuses[name].reason, name)
    assert (await pods_by_job(listed)).keys() == {"good"}


CHANGES: list[Json] = [
    {"replicas": 3},
    {"nprocPerNode": 2},
    {"backend": "gloo"},
    {"masterPort": 29600},
    {"statusPort": 29601},
    {"template": template(container(image="registry.example/trainer:2"))},
    {"template": template(terminationGracePeriodSeconds=5)},
    {"accelerator": {"type": "nvidia-l4"}},
    {"checkpoint": {"hostPath": "/mnt"}},
]


async def test_each_change_that_shapes_pods_restarts_all_of_them(jobs: Jobs) -> None:
    """Without the CRD's rules nothing compares the spec with the one before."""

    async def change(name: str, fields: Json) -> None:
        await jobs.create(job(name, replicas=2))
        await jobs.until(lambda status: status.is_true("PodsCreated"), name)
        await jobs.set_spec(name, **fields)
        assert "spec changed" in await jobs.until_told("Restarting", name)
        count = fields.get("replicas", 2)
        await jobs.until_pods(*(f"{name}-1-{index}" for index in range(count)), name=name)

    await asyncio.gather(*(change(f"job-{n}", fields) for n, fields in enumerate(CHANGES)))


def _pods_at_first(spec: Json) -> int:
    """Return how many pods exist before any of them has a node.

    In a queue or gang, an elastic job has only the pods that it needs.
    """
    pods: int = spec["replicas"]
    scheduling = spec.get("scheduling") or {}
    if "queueName" not in scheduling and scheduling.get("gang", "none") == "none":
        return pods
    elastic = spec.get("elastic") or {}
    return int(elastic.get("minReplicas", pods))
