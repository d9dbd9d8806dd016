"""One real API server for all integration tests of a session, and a namespace for each test.

There is no kubelet and, except for placement, no scheduler: pods stay as they are until a test
plays those parts.
"""

import asyncio
import contextlib
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ddp_client.cli.__main__ import program
from ddp_operator.api.rules import SPEC_RULES
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.kube import PODS, ApiClient, check_served, load_credentials
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import AlreadyExistsError, ClusterError, InvalidError, NotFoundError

from tests import cluster
from tests.bad_manifests import BAD_MANIFESTS
from tests.cluster.preparation import binaries
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.skipping import skip_or_fail
from tests.waiting import eventually

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accepts an object's metadata alone."""

Ddp = Callable[..., Coroutine[Any, Any, Result]]
"""Runs `kubectl ddp` with some arguments."""

Kubectl = Callable[..., Coroutine[Any, Any, str]]
"""Runs kubectl with some arguments."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/integration/" in item.path.as_posix():
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager; tests may restart the API server."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.control_plane(controllers=True, scheduler=False))
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("API SERVER", reason)
        yield running


@pytest.fixture
def as_operator(control_plane: cluster.ControlPlane) -> Path:
    """The kubeconfig of a user who has only the rights that a test grants."""
    return control_plane.kubeconfig_for("operator")


@pytest.fixture
async def admin(control_plane: cluster.ControlPlane) -> AsyncIterator[ApiClient]:
    """A client with all rights, and with patience for a server that shares its cores."""
    credentials = load_credentials(kubeconfig=str(control_plane.kubeconfig))
    async with ApiClient(credentials, timeout_seconds=180) as client:
        yield client


@contextlib.asynccontextmanager
async def new_namespace(admin: ApiClient, **labels: str) -> AsyncIterator[str]:
    """Create a namespace, and delete the jobs and pods in it afterwards.

    `labels` are those of Pod Security, by the last part of their names. The namespace itself stays,
    because deleting one takes longer than most tests.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    named = {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()}
    metadata = {"name": name, "labels": named}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    await admin.request("POST", "/api/v1/namespaces", body=body)
    try:
        yield name
    finally:
        with contextlib.suppress(ClusterError):  # a test may have left the server stopped
            await _empty(admin, name)


async def _empty(admin: ApiClient, namespace: str) -> None:
    with contextlib.suppress(NotFoundError):  # without the CRD there are none
        await admin.request("DELETE", JOBS.path(namespace=namespace), max_attempts=1)
    path = PODS.path(namespace=namespace)
    for pod in (await admin.request("GET", path, max_attempts=1))["items"]:
        if pod["metadata"].get("finalizers"):  # of a queue
            of_pod = PODS.path(namespace=namespace, name=pod["metadata"]["name"])
            body = {"metadata": {"finalizers": None}}
            await admin.request("PATCH", of_pod, body=body, content_type=MERGE_PATCH)
    # No kubelet reports that they have ended.
    await admin.request("DELETE", path, params={"gracePeriodSeconds": "0"})


@pytest.fixture
async def namespace(admin: ApiClient) -> AsyncIterator[str]:
    """The name of a new namespace for the test."""
    async with new_namespace(admin) as name:
        yield name


@pytest.fixture(scope="session")
def kubectl_program() -> str:
    """kubectl of the Kubernetes under test, or else the one on PATH."""
    try:
        return binaries.kubectl()
    except cluster.ClusterUnavailableError as reason:
        skip_or_fail("KUBECTL", reason)


@pytest.fixture
def kubectl(kubectl_program: str, control_plane: cluster.ControlPlane, namespace: str) -> Kubectl:
    """Run kubectl in the test's namespace and return its output."""
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)}

    async def run(*words: str, stdin: str = "") -> str:
        result = await asyncio.to_thread(
            subprocess.run,
            [kubectl_program, "--namespace", namespace, *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    return run


async def install_crd(client: ApiClient) -> None:
    """Install the CRD unless it is there, and wait until it is served."""
    definition = custom_resource_definition()
    try:
        await client.request("GET", f"{CRDS}/{definition['metadata']['name']}", accept=METADATA)
    except NotFoundError:
        # Refusing a duplicate takes the server as long as creating it.
        with contextlib.suppress(AlreadyExistsError):
            await client.request("POST", CRDS, body=definition)
    await eventually(lambda: check_served(client, JOBS), interval_seconds=0.05)


async def change_crd(client: ApiClient, *, with_rules: bool) -> None:
    """Make the server apply the installed CRD's rules from now on, or ignore them."""
    definition = custom_resource_definition()
    if not with_rules:
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        spec = schema["properties"]["spec"]
        on = {rule.on for rule in SPEC_RULES}
        for node in (schema, *(spec["properties"][field] if field else spec for field in on)):
            del node["x-kubernetes-validations"]
    path = f"{CRDS}/{definition['metadata']['name']}"
    versions = {"spec": {"versions": definition["spec"]["versions"]}}
    await client.request("PATCH", path, body=versions, content_type=MERGE_PATCH)
    bad = next(bad for bad in BAD_MANIFESTS if bad.refused_by == "cel")

    async def in_force() -> bool:
        path, dry = JOBS.path(namespace="default"), {"dryRun": "All"}
        try:
            await client.request("POST", path, body=bad.manifest, params=dry)
        except InvalidError:
            return with_rules
        return not with_rules

    await eventually(in_force, interval_seconds=0.05)


@pytest.fixture
async def jobs(admin: ApiClient, namespace: str) -> Jobs:
    """A user of the test's namespace, on a server with the CRD."""
    await install_crd(admin)
    return Jobs(admin, namespace)


@pytest.fixture
def kubelet(admin: ApiClient, namespace: str) -> FakeKubelet:
    """The scheduler and kubelet of the namespace's pods, which the test controls."""
    return FakeKubelet(admin, namespace)


@pytest.fixture
def ddp(control_plane: cluster.ControlPlane, namespace: str) -> Ddp:
    """Run `kubectl ddp` with these arguments in the test's namespace, in this process."""
    options = ["--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]

    async def run(*arguments: str) -> Result:
        # The program runs its own event loop.
        return await asyncio.to_thread(CliRunner().invoke, program, [*options, *arguments])

    return run


@pytest.fixture(scope="module")
def shared_operator(
    control_plane: cluster.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator process for all namespaces and all tests of a module."""

    async def prepare() -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            await install_crd(client)

    asyncio.run(prepare())
    log = tmp_path_factory.mktemp("operator") / "log"
    with running_operator(control_plane.kubeconfig, log, namespace=None) as process:
        yield process
        assert "Traceback" not in process.log
