"""What the operator checks before it works, what it says when something is missing, and that the
permissions it is installed with are those it needs: no fewer, no more.
"""

import asyncio
import re
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from ddp_operator import service
from ddp_operator.kube import ApiClient, check_served, load_credentials
from ddp_operator.ports import ClusterError

from tests import cluster
from tests.good_manifests import job
from tests.integration.faulty_proxy import FaultyProxy, Seen, faulty_proxy, write
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import running_operator
from tests.waiting import eventually

RBAC: Final = Path(__file__).parents[2] / "manifests/install/rbac.yaml"
_AUTHORIZATION: Final = "/apis/rbac.authorization.k8s.io/v1"


def installed_role() -> dict[str, Any]:
    """The ClusterRole that the operator is installed with."""
    documents = yaml.safe_load_all(RBAC.read_text())
    role: dict[str, Any] = next(
        document
        for document in documents
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == "ddp-operator"
    )
    return role


def permissions(role: dict[str, Any]) -> set[tuple[str, str]]:
    """All (verb, resource) that a role grants."""
    return {
        (verb, resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


PERMISSIONS: Final = sorted(permissions(installed_role()))


class Role:
    """A ClusterRole of the user `operator`, as installed but for what a test takes away."""

    def __init__(self, admin: ApiClient) -> None:
        self._admin = admin
        self.name = f"operator-{uuid.uuid4().hex[:8]}"

    async def grant(self, *, without: tuple[str, str] | None = None) -> None:
        """Write the role, complete or without one verb of one resource."""
        role = deepcopy(installed_role())
        role["metadata"] = {"name": self.name}
        role["rules"] = [
            {**rule, "verbs": [v for v in rule["verbs"] if without != (v, rule["resources"][0])]}
            for rule in role["rules"]
        ]
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
        path = f"{_AUTHORIZATION}/clusterroles"
        try:
            await self._admin.request("PUT", f"{path}/{self.name}", body=role)
        except ClusterError:
            await self._admin.request("POST", path, body=role)

    async def bind(self) -> None:
        """Give the role to the user."""
        kind = {"apiGroup": "rbac.authorization.k8s.io"}
        binding = {
            "metadata": {"name": self.name},
            "roleRef": {**kind, "kind": "ClusterRole", "name": self.name},
            "subjects": [{**kind, "kind": "User", "name": "operator"}],
        }
        path = f"{_AUTHORIZATION}/clusterrolebindings"
        await self._admin.request("POST", path, body=binding)

    async def remove(self) -> None:
        """Take both away again."""
        for kind in ("clusterrolebindings", "clusterroles"):
            await self._admin.request("DELETE", f"{_AUTHORIZATION}/{kind}/{self.name}")


@pytest.fixture
async def role(admin: ApiClient, jobs: Jobs) -> AsyncIterator[Role]:  # noqa: ARG001 - the CRD
    role = Role(admin)
    await role.grant()
    await role.bind()
    yield role
    await role.remove()


@pytest.fixture
def as_operator(control_plane: cluster.ControlPlane) -> Path:
    """The kubeconfig of a user with no rights but those of `role`."""
    return control_plane.kubeconfig_for("operator")


async def complaint(kubeconfig: Path) -> str:
    """What the start-up checks say; empty when nothing is missing."""
    async with ApiClient(load_credentials(kubeconfig=str(kubeconfig))) as client:
        try:
            await service._check(client, None)
        except service.StartupError as error:
            return str(error)
    return ""


async def until_said(kubeconfig: Path, expected: str) -> None:
    """Wait until the checks say this: the server learns of changed roles a moment later."""
    said = ""

    async def as_expected() -> bool:
        nonlocal said
        said = await complaint(kubeconfig)
        return said == expected

    await eventually(
        as_expected, interval_seconds=0.05, describe=lambda: f"{said!r} is not {expected!r}"
    )


def question(seen: Seen) -> tuple[str, str]:
    """The permission that the server asks for when it gets this request."""
    parts = seen.path.split("/")
    rest = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    resource = "/".join(rest[::2])
    if seen.method == "GET":
        verb = "watch" if seen.watch else "get" if len(rest) > 1 else "list"
    else:
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[seen.method]
    return verb, resource


async def use_every_permission(proxy: FaultyProxy, jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Take a job through everything for which the operator asks the server for something else."""
    # An answer that is lost makes the operator look for what it has created.
    proxy.lose_answers(write("POST", "/pods"), times=1)
    proxy.lose_answers(write("POST", "/services"), times=1)
    manifest = job(replicas=2, restart={"scope": "Pod"}, ttlSecondsAfterFinished=0)
    await jobs.create(manifest)
    await jobs.until_pods("job-0-0", "job-0-1")
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    await jobs.delete_pod("job-0-1")
    await jobs.until_pods("job-0-0", "job-0-1-r1")
    await kubelet.run("job-0-1-r1")
    await kubelet.fail("job-0-1-r1")
    await jobs.until_pods("job-0-0", "job-0-1-r2")
    for pod in ("job-0-0", "job-0-1-r2"):
        await kubelet.succeed(pod)

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.05)


async def test_the_installed_permissions_are_exactly_those_that_are_used(
    role: Role,  # noqa: ARG001 - gives the rights
    as_operator: Path,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    await until_said(as_operator, "")
    async with faulty_proxy(as_operator, tmp_path / "proxied") as proxy:
        with running_operator(tmp_path / "proxied", tmp_path / "log", namespace=None):
            await use_every_permission(proxy, jobs, kubelet)
        served = ("/api/v1/", "/apis/ddp-operator.io/v1alpha1/")
        used = {question(seen) for seen in proxy.seen if seen.path.startswith(served)}
        refused = [seen for seen in proxy.seen if seen.status == 403]
    assert refused == []
    assert sorted(used) == PERMISSIONS


async def test_each_missing_permission_is_named(role: Role, as_operator: Path) -> None:
    await until_said(as_operator, "")
    for verb, resource in PERMISSIONS:
        await role.grant(without=(verb, resource))
        group = ".ddp-operator.io" if resource.startswith("ddpjobs") else ""
        expected = (
            "missing permissions (see manifests/install/rbac.yaml): "
            f"{verb} {resource}{group} in all namespaces"
        )

        await until_said(as_operator, expected)


async def test_without_rights_it_ends_with_one_line(
    jobs: Jobs, as_operator: Path, tmp_path: Path
) -> None:
    with running_operator(as_operator, tmp_path / "log", namespace=jobs.namespace) as process:
        process.told_to_end = True
        assert await process.exit_code() == 1
        [line] = process.log.splitlines()
    assert "ERROR" in line
    assert f"create pods in namespace {jobs.namespace}" in line
    assert "manifests/install/rbac.yaml" in line


async def test_without_the_crd_it_ends_with_one_line(tmp_path: Path) -> None:
    with cluster.control_plane(controllers=False) as bare:
        async with ApiClient(load_credentials(kubeconfig=str(bare.kubeconfig))) as client:
            assert not await check_served(client, JOBS)
        with running_operator(bare.kubeconfig, tmp_path / "log", namespace=None) as process:
            process.told_to_end = True
            assert await process.exit_code() == 1
            [line] = process.log.splitlines()
    assert "kubectl apply -f crds/ddpjobs.yaml" in line


async def test_without_a_cluster_it_ends_with_one_line(tmp_path: Path) -> None:
    with running_operator(tmp_path / "no-such-file", tmp_path / "log", namespace=None) as process:
        process.told_to_end = True
        assert await process.exit_code() == 1
        [line] = process.log.splitlines()
    assert re.search(r"no kubeconfig at .*no-such-file", line)


async def test_it_tells_when_it_is_alive_and_ready(
    control_plane: cluster.ControlPlane, jobs: Jobs, tmp_path: Path
) -> None:
    port = await asyncio.to_thread(_free_port)
    statuses: dict[str, int] = {}

    async def ready() -> bool:
        async with aiohttp.ClientSession() as session:
            for path in ("healthz", "readyz"):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                        statuses[path] = answer.status
                except aiohttp.ClientConnectionError:
                    return False
        return statuses["readyz"] == 200

    with running_operator(
        control_plane.kubeconfig, tmp_path / "log", namespace=jobs.namespace, health_port=port
    ):
        await eventually(ready, interval_seconds=0.05, describe=lambda: statuses)
        assert statuses == {"healthz": 200, "readyz": 200}


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
