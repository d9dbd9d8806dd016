"""Good and bad manifests as the operator judges them: what it refuses, and in which words.

The CRD here has no CEL rules, as for jobs from before a rule; `test_crd_rules.py` has the API
server's judgement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.kube import ApiClient, Resource, load_credentials
from ddp_operator.ports import InvalidError

from tests import cluster
from tests.bad_manifests import BAD_MANIFESTS, BadManifest
from tests.good_manifests import GOOD_MANIFESTS, Json, container, job, template
from tests.integration import pod_groups
from tests.integration.conftest import change_crd, install_crd
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, start

pytestmark = pytest.mark.usefixtures("without_rules", "with_gangs", "shared_operator")


@pytest.fixture(scope="module")
def without_rules(control_plane: cluster.ControlPlane) -> Iterator[None]:
    """Has the API server forget the CRD's rules."""

    async def serve(*, with_rules: bool) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            await install_crd(client)
            await change_crd(client, with_rules=with_rules)

    asyncio.run(serve(with_rules=False))
    yield
    asyncio.run(serve(with_rules=True))


@pytest.fixture(scope="module")
def with_gangs(control_plane: cluster.ControlPlane) -> Iterator[None]:
    """Has the API server know all PodGroups, as where all schedulers are installed."""

    async def for_each(act: Callable[[ApiClient, Resource], Awaitable[None]]) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            for resource in (pod_groups.COSCHEDULING, pod_groups.VOLCANO):
                await act(client, resource)

    asyncio.run(for_each(pod_groups.install))
    yield
    asyncio.run(for_each(pod_groups.remove))


def test_there_are_bad_manifests_of_every_kind() -> None:
    assert len(BAD_MANIFESTS) >= 25
    assert {bad.refused_by for bad in BAD_MANIFESTS} == {"schema", "cel", "pod"}


@pytest.mark.parametrize("name", GOOD_MANIFESTS)
async def test_a_good_manifest_gets_its_pods(jobs: Jobs, name: str) -> None:
    manifest: Json = GOOD_MANIFESTS[name]
    stored = await jobs.create(manifest)
    spec, job_name = stored["spec"], stored["metadata"]["name"]
    if DDPJob.parse(stored).spec.managed_elsewhere:  # and the operator does nothing
        await jobs.create(job("other"))
        await jobs.until(lambda status: status.is_true("PodsCreated"), "other")
        assert (await jobs.get(job_name)).get("status") is None
        assert await jobs.pods(job_name) == {}
        return
    if spec["suspend"]:
        await jobs.until_phase("Suspended", job_name)
        assert await jobs.pods(job_name) == {}
        return
    status = await jobs.until(lambda status: status.is_true("PodsCreated"), job_name)
    assert status.phase == "Pending"
    expected = {f"{job_name}-0-{index}" for index in range(_pods_at_first(spec))}
    assert (await jobs.pods(job_name)).keys() == expected
    assert await jobs.service(job_name)


@pytest.mark.parametrize("bad", BAD_MANIFESTS, ids=lambda bad: bad.name)
async def test_a_bad_manifest_is_refused_in_words(jobs: Jobs, bad: BadManifest) -> None:
    if bad.refused_by == "schema":
        with pytest.raises(InvalidError) as refusal:
            await jobs.create(bad.manifest)
        assert refusal.value.status == 422
        assert bad.says in refusal.value.message
        return
    stored = await jobs.create(bad.manifest)
    name = stored["metadata"]["name"]
    status = await jobs.until_phase("Failed", name)
    reason = "InvalidSpec" if bad.refused_by == "cel" else "InvalidPodTemplate"
    assert status.reason == reason
    assert bad.says in status.message
    assert status.observed_generation == stored["metadata"]["generation"]
    assert status.completion_time is not None
    assert bad.says in await jobs.until_told(reason, name)
    assert await jobs.pods(name) == {}


async def test_the_operator_keeps_serving_others(jobs: Jobs) -> None:
    accepted = [bad for bad in BAD_MANIFESTS if bad.refused_by != "schema"]
    assert len(accepted) >= 8
    names = {
        bad.name: "a" * 51 + str(i) if "long" in bad.name else f"bad-{i}"
        for i, bad in enumerate(accepted)
        if "name that" not in bad.name and "name with" not in bad.name
    }
    await asyncio.gather(*(jobs.create(bad.manifest, name=names.get(bad.name)) for bad in accepted))
    await jobs.create(job("good", replicas=2))
    await jobs.until_pods("good-0-0", "good-0-1", name="good")
    assert (await jobs.until_phase("Pending", "good")).reason == "PodsStarting"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replicas", 3),
        ("nprocPerNode", 2),
        ("backend", "gloo"),
        ("masterPort", 29600),
        ("statusPort", 29601),
        ("template", template(container(image="registry.example/trainer:2"))),
        ("template", template(terminationGracePeriodSeconds=5)),
        ("accelerator", {"type": "nvidia-l4"}),
        ("checkpoint", {"hostPath": "/mnt"}),
    ],
)
async def test_what_shapes_the_pods_of_a_job_that_is_not_suspended(
    jobs: Jobs, field: str, value: Any
) -> None:
    """Where nothing compares it with what was before, all pods start anew with it."""
    await jobs.create(job(replicas=2))
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await jobs.set_spec(**{field: value})
    assert "spec changed" in await jobs.until_told("Restarting")
    count = value if field == "replicas" else 2
    await jobs.until_pods(*(f"job-1-{index}" for index in range(count)))


async def test_a_changed_template_starts_all_pods_anew_and_is_not_charged(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet)
    await jobs.set_spec(template=template(container(image="registry.example/trainer:2")))
    await kubelet.let_go("job-0-0", "job-0-1")
    pods = await jobs.until_pods("job-1-0", "job-1-1")
    assert pods["job-1-0"]["spec"]["containers"][0]["image"].endswith(":2")
    status = await jobs.until_phase("Restarting")
    assert (status.restarts, status.disruptions) == (0, 0)
    assert status.condition("Restarting").reason == "SpecChanged"  # type: ignore[union-attr]
    assert status.observed_generation == 2


def _pods_at_first(spec: Json) -> int:
    """How many pods exist before any of them has a node: in a queue also the spares, and of an
    elastic job only those that it needs.
    """
    pods: int = spec["replicas"]
    scheduling = spec.get("scheduling") or {}
    if "queueName" not in scheduling or scheduling.get("gang") == "volcano":
        return pods
    elastic = spec.get("elastic") or {}
    return int(elastic.get("minReplicas", pods)) + int(spec.get("spares", 0))
