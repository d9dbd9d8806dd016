"""The admission policies on a real API server: its CEL, its types and its limits of cost."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
import yaml
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.prerequisites import network_policy
from ddp_operator.job.pods.state import Identity
from ddp_operator.kube import ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import ClusterError

from tests import cluster
from tests.good_manifests import Json, job
from tests.integration.jobs import JOBS, Jobs
from tests.integration.rights import MANIFESTS
from tests.unit.kube import example_policy
from tests.unit.kube.bad_requests import BAD, POLICY
from tests.waiting import eventually

NAMESPACE: Final = "ddp-operator"
OPERATOR: Final = f"system:serviceaccount:{NAMESPACE}:ddp-operator"
_FILES: Final = (
    "install/rbac.yaml",
    "components/admission-policy/admission-policy.yaml",
)
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"

Create = Callable[[Json], Awaitable[str]]
"""Try to create an object; return the refusal, or an empty text."""


@pytest.fixture
async def create(
    control_plane: cluster.ControlPlane, kubectl_program: str
) -> AsyncIterator[Create]:
    """Try to create an object as the operator's account. Nothing is stored."""

    async def run(*words: str, manifest: Json | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            *(kubectl_program, "--kubeconfig", str(control_plane.kubeconfig), *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate(json.dumps(manifest).encode())
        return errors.decode() if process.returncode else ""

    async def create(manifest: Json) -> str:
        words = ("create", "--dry-run=server", "--validate=false", f"--as={OPERATOR}", "-f", "-")
        return await run(*words, manifest=manifest)

    # Without labels of Pod Security, which refuses pods for other reasons.
    namespace: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert await run("apply", "-f", "-", manifest=namespace) == ""
    for file in _FILES:
        assert await run("apply", "--server-side", "-f", str(MANIFESTS / file)) == ""
    yield create
    for file in _FILES:
        assert await run("delete", "--wait=false", "-f", str(MANIFESTS / file)) == ""


async def test_operators_policy_admits_its_objects_and_refuses_others(
    create: Create, jobs: Jobs
) -> None:
    stored = DDPJob.parse(await jobs.create(job(replicas=2, suspend=True)))
    own: dict[str, Json] = {
        "CREATE pods": manifests.pod(stored, Identity(0, 0)),
        "CREATE services": manifests.service(stored),
        "CREATE networkpolicies": network_policy(stored, operator_namespace=NAMESPACE),
        "CREATE secrets": Access(keys={"k": b"own"}).secret_manifest(stored, "k"),
    }
    bad = [one for one in BAD if one.act in own]
    assert len(bad) > 40

    def changed(number: int) -> Json:
        manifest = copy.deepcopy(own[bad[number].act])
        bad[number].change(manifest)
        return manifest

    async def in_force() -> bool:
        return "denied" in await create(changed(0))

    await eventually(in_force, interval_seconds=0.2)
    assert {act: await create(manifest) for act, manifest in own.items()} == dict.fromkeys(own, "")
    wrong = {}
    for number, one in enumerate(bad):
        refusal = await create(changed(number))
        if one.refused_by["message"] not in refusal:
            wrong[one.name] = refusal or "admitted"
    assert wrong == {}


@pytest.mark.usefixtures("create")
async def test_types_in_the_operators_policy_are_right(admin: ApiClient) -> None:
    path = f"{_ADMISSION}ies/{POLICY['metadata']['name']}"

    async def checked() -> bool:
        status = (await admin.request("GET", path)).get("status") or {}
        return "typeChecking" in status

    await eventually(checked, interval_seconds=0.2)
    status = (await admin.request("GET", path))["status"]
    assert status["typeChecking"].get("expressionWarnings", []) == []


@pytest.fixture
async def limited(admin: ApiClient, jobs: Jobs) -> AsyncIterator[str]:
    """Limit the test's namespace by the example's policy."""
    body: Json = {"metadata": {"labels": {"ddpjobs": "limited"}}}
    path = f"/api/v1/namespaces/{jobs.namespace}"
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    await admin.request("POST", f"{_ADMISSION}ies", body=example_policy.POLICY)
    await admin.request("POST", f"{_ADMISSION}ybindings", body=example_policy.BINDING)
    name = example_policy.POLICY["metadata"]["name"]
    try:
        yield jobs.namespace
    finally:
        await admin.request("DELETE", f"{_ADMISSION}ybindings/{name}")
        await admin.request("DELETE", f"{_ADMISSION}ies/{name}")


async def test_example_policy_refuses_jobs_beyond_its_limits(
    admin: ApiClient, limited: str
) -> None:
    async def refusal(manifest: Json) -> str:
        path = JOBS.path(namespace=limited)
        try:
            await admin.request("POST", path, body=manifest, params={"dryRun": "All"})
        except ClusterError as error:
            return error.message
        return ""

    async def in_force() -> bool:
        return await refusal(example_policy.BAD[0][1]) != ""

    await eventually(in_force, interval_seconds=0.2)
    assert {name: await refusal(good) for name, good in example_policy.GOOD.items()} == (
        dict.fromkeys(example_policy.GOOD, "")
    )
    found = {name: await refusal(bad) for name, bad, _ in example_policy.BAD}
    assert {
        name: found[name] for name, _, says in example_policy.BAD if says not in found[name]
    } == {}


async def test_example_policy_refuses_scaling_beyond_its_limit(
    admin: ApiClient, jobs: Jobs, limited: str
) -> None:
    manifest: Json = example_policy.limited(elastic={"minReplicas": 1}, suspend=True)
    await jobs.create(manifest)
    path = f"{JOBS.path(namespace=limited)}/{manifest['metadata']['name']}/scale"
    scaled: dict[str, Any] = {"spec": {"replicas": 65}}

    async def in_force() -> bool:
        try:
            await admin.request(
                *("PATCH", path), body=scaled, content_type=MERGE_PATCH, params={"dryRun": "All"}
            )
        except ClusterError as error:
            return "a job has at most 64 pods" in error.message
        return False

    await eventually(in_force, interval_seconds=0.2)


async def test_example_quota_limits_the_number_of_jobs(admin: ApiClient, jobs: Jobs) -> None:
    file = MANIFESTS / "examples/policies/quota.yaml"
    quota: Json = yaml.safe_load(file.read_text())
    assert quota["spec"]["hard"]["count/ddpjobs.ddp-operator.io"] == "50"
    quota["spec"]["hard"]["count/ddpjobs.ddp-operator.io"] = "1"
    path = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    await admin.request("POST", path, body=quota)

    # Written by the server's controller, which looks for new kinds only now and then.
    used = {"count/ddpjobs.ddp-operator.io": "0"}
    status: Json = {"status": {"hard": quota["spec"]["hard"], "used": used}}
    counts = f"{path}/{quota['metadata']['name']}/status"
    await admin.request("PATCH", counts, body=status, content_type=MERGE_PATCH)
    await jobs.create(job("first", suspend=True))
    with pytest.raises(ClusterError, match="exceeded quota: ddpjobs"):
        await jobs.create(job("second", suspend=True))
