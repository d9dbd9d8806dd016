"""What the operator checks before it works, what it says when something is missing, and that the
permissions it is installed with are those it needs: no fewer, no more.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from ddp_operator import startup
from ddp_operator.kube import (
    LEASES,
    NETWORK_POLICIES,
    NODES,
    SECRETS,
    ApiClient,
    check_served,
    load_credentials,
)
from ddp_operator.ports import ClusterError, Key

from tests import cluster
from tests.good_manifests import job
from tests.integration.http_proxy import HttpProxy, Seen, http_proxy, write
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import running_operator
from tests.ports import free_port
from tests.waiting import eventually

RBAC: Final = Path(__file__).parents[2] / "manifests/install/rbac.yaml"
_AUTHORIZATION: Final = "/apis/rbac.authorization.k8s.io/v1"


def installed_role(kind: str) -> dict[str, Any]:
    """The ClusterRole, or the Role in its own namespace, that the operator is installed with."""
    documents = yaml.safe_load_all(RBAC.read_text())
    role: dict[str, Any] = next(
        document
        for document in documents
        if document["kind"] == kind and document["metadata"]["name"] == "ddp-operator"
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


LEASE_NAME: Final = "ddp-operator"
KINDS: Final = ("ClusterRole", "Role")
PERMISSIONS: Final = sorted(set().union(*(permissions(installed_role(kind)) for kind in KINDS)))


class Roles:
    """The ClusterRole and the Role of the user `operator`, as installed but for what a test takes
    away; `namespace` is the operator's own.
    """

    def __init__(self, admin: ApiClient, namespace: str) -> None:
        self._admin = admin
        self.namespace = namespace
        self.name = f"operator-{uuid.uuid4().hex[:8]}"

    def _path(self, kind: str) -> str:
        where = f"/namespaces/{self.namespace}" if kind.startswith("Role") else ""
        return f"{_AUTHORIZATION}{where}/{kind.lower()}s"

    async def grant(self, *, without: tuple[str, str] | None = None) -> None:
        """Write the roles, complete or without one verb of one resource."""
        for kind in KINDS:
            role = deepcopy(installed_role(kind))
            role["metadata"] = {"name": self.name}
            role["rules"] = [
                {
                    **rule,
                    "verbs": [v for v in rule["verbs"] if without != (v, rule["resources"][0])],
                }
                for rule in role["rules"]
            ]
            role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
            path = self._path(kind)
            try:
                await self._admin.request("PUT", f"{path}/{self.name}", body=role)
            except ClusterError:
                await self._admin.request("POST", path, body=role)

    async def bind(self) -> None:
        """Give the roles to the user."""
        group = {"apiGroup": "rbac.authorization.k8s.io"}
        for kind in KINDS:
            binding = {
                "metadata": {"name": self.name},
                "roleRef": {**group, "kind": kind, "name": self.name},
                "subjects": [{**group, "kind": "User", "name": "operator"}],
            }
            await self._admin.request("POST", self._path(f"{kind}Binding"), body=binding)

    async def remove(self) -> None:
        """Take all of it away again."""
        for kind in KINDS:
            for path in (self._path(f"{kind}Binding"), self._path(kind)):
                await self._admin.request("DELETE", f"{path}/{self.name}")


@pytest.fixture
async def roles(admin: ApiClient, jobs: Jobs) -> AsyncIterator[Roles]:
    roles = Roles(admin, jobs.namespace)
    await roles.grant()
    await roles.bind()
    yield roles
    await roles.remove()


@pytest.fixture
def as_operator(control_plane: cluster.ControlPlane) -> Path:
    """The kubeconfig of a user with no rights but those of `roles`."""
    return control_plane.kubeconfig_for("operator")


async def complaint(kubeconfig: Path, lease_namespace: str) -> str:
    """What the start-up checks say; empty when nothing is missing."""
    async with ApiClient(load_credentials(kubeconfig=str(kubeconfig))) as client:
        try:
            secret = Key(lease_namespace, startup.SECRET_NAME)
            lease = Key(lease_namespace, LEASE_NAME)
            await startup.check(client, None, secret=secret, lease=lease)
        except startup.StartupError as error:
            return str(error)
    return ""


async def until_said(kubeconfig: Path, lease_namespace: str, expected: str) -> None:
    """Wait until the checks say this: the server learns of changed roles a moment later."""
    said = ""

    async def as_expected() -> bool:
        nonlocal said
        said = await complaint(kubeconfig, lease_namespace)
        return said == expected

    await eventually(
        as_expected, interval_seconds=0.05, describe=lambda: f"{said!r} is not {expected!r}"
    )


VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def question(seen: Seen) -> tuple[str, str]:
    """The permission that the server asks for when it gets this request."""
    parts = seen.path.split("/")
    rest = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    resource = "/".join(rest[::2])
    if seen.method == "GET":
        verb = "watch" if seen.watch else "get" if len(rest) > 1 else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[
            seen.method
        ]
    return verb, resource


async def use_every_permission(proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Take a job through everything for which the operator asks the server for something else."""
    # An answer that is lost makes the operator look for what it has created.
    proxy.lose_answers(write("POST", "/pods"), times=1)
    proxy.lose_answers(write("POST", "/services"), times=1)
    restart = {"scope": "Pod"}
    manifest = job(replicas=2, restart=restart, ttlSecondsAfterFinished=0, isolation="Job")
    await jobs.create(manifest)
    await jobs.until_pods("job-0-0", "job-0-1")
    # Another port: the NetworkPolicy of before has to change.
    await jobs.set_spec(statusPort=29502)
    await jobs.until_pods("job-1-0", "job-1-1")
    await jobs.set_spec(isolation="None")
    await eventually(lambda: is_answered(proxy, "DELETE", "/networkpolicies/"))
    for pod in ("job-1-0", "job-1-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    await jobs.delete_pod("job-1-1")
    await jobs.until_pods("job-1-0", "job-1-1-r1")
    await kubelet.run("job-1-1-r1")
    await kubelet.fail("job-1-1-r1")
    await jobs.until_pods("job-1-0", "job-1-1-r2")
    for pod in ("job-1-0", "job-1-1-r2"):
        await kubelet.succeed(pod)

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.05)
    # A request is seen when its answer passes, the job's deletion perhaps after the job is gone.
    await eventually(lambda: is_answered(proxy, "DELETE", "/ddpjobs/"))
    await eventually(lambda: is_answered(proxy, "PUT", "/leases/"))  # renewed


def is_answered(proxy: HttpProxy, method: str, resource: str) -> bool:
    return any(seen.method == method and resource in seen.path for seen in proxy.seen)


def namespace_of(seen: Seen) -> str:
    """The namespace that a request is about; empty for requests about all of them."""
    _, _, rest = seen.path.partition("/namespaces/")
    return rest.split("/")[0]


async def test_the_installed_permissions_are_exactly_those_that_are_used(
    roles: Roles,
    as_operator: Path,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    await until_said(as_operator, roles.namespace, "")
    options = ["--leader-elect", "--lease-namespace", roles.namespace]
    async with http_proxy(as_operator, tmp_path / "proxied") as proxy:
        with running_operator(
            tmp_path / "proxied", tmp_path / "log", namespace=None, options=options
        ):
            await use_every_permission(proxy, jobs, kubelet)
        roots = (LEASES.root, NETWORK_POLICIES.root)
        served = ("/api/v1/", "/apis/ddp-operator.io/v1alpha1/", *roots)
        used = {question(seen) for seen in proxy.seen if seen.path.startswith(served)}
        # The server refuses to create anything in other tests' namespaces that are being deleted.
        elsewhere = {namespace_of(seen) for seen in proxy.seen} - {
            "",
            jobs.namespace,
            roles.namespace,
        }
        refused = [
            seen
            for seen in proxy.seen
            if seen.status == 403 and namespace_of(seen) not in elsewhere
        ]
    assert refused == []
    assert sorted(used) == PERMISSIONS


async def test_each_missing_permission_is_named(roles: Roles, as_operator: Path) -> None:
    await until_said(as_operator, roles.namespace, "")
    for verb, resource in PERMISSIONS:
        if resource == NODES.plural:
            continue  # it works without
        await roles.grant(without=(verb, resource))
        groups = {"ddpjobs": JOBS.group, NETWORK_POLICIES.plural: NETWORK_POLICIES.group}
        group = groups.get(resource.partition("/")[0])
        what, where = f"{verb} {resource}{f'.{group}' if group else ''}", "all namespaces"
        own = {LEASES: LEASE_NAME, SECRETS: startup.SECRET_NAME}
        for kind, own_name in own.items():
            if resource == kind.plural:
                name = "" if verb == "create" else f" {own_name}"
                what, where = f"{verb} {kind}{name}", f"namespace {roles.namespace}"
        expected = f"missing permissions (see manifests/install/rbac.yaml): {what} in {where}"
        await until_said(as_operator, roles.namespace, expected)


async def test_without_a_look_at_nodes_it_works_and_says_what_it_will_not_do(
    roles: Roles, as_operator: Path, jobs: Jobs, tmp_path: Path
) -> None:
    await roles.grant(without=("watch", NODES.plural))
    await until_said(as_operator, roles.namespace, "")
    options = ["--lease-namespace", roles.namespace]
    with running_operator(
        as_operator, tmp_path / "log", namespace=None, options=options
    ) as process:
        await jobs.create(job(replicas=2))
        await jobs.until_pods("job-0-0", "job-0-1")
        said = "jobs will not avoid bad nodes, for want of a permission: watch nodes"
        assert said in process.log


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
    port = await asyncio.to_thread(free_port)
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
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            assert "\nddp_operator_leader 1\n" in await answer.text()


async def test_it_waits_for_a_server_that_is_away_and_may_be_told_to_end_meanwhile(
    control_plane: cluster.ControlPlane, jobs: Jobs, tmp_path: Path
) -> None:
    port = await asyncio.to_thread(free_port)
    with (
        running_operator(
            control_plane.kubeconfig, tmp_path / "1", namespace=jobs.namespace, health_port=port
        ) as patient,
        running_operator(control_plane.kubeconfig, tmp_path / "2", namespace=None) as ended,
    ):
        await asyncio.to_thread(control_plane.stop_apiserver)
        for process in (patient, ended):  # whether or not they had got that far
            process.kill()
            process.start()
        try:
            for process in (patient, ended):
                await eventually(
                    lambda log=process: "waiting for the API server" in log.log,  # type: ignore[misc]
                    describe=lambda log=process: log.log,  # type: ignore[misc]
                )
            async with aiohttp.ClientSession() as session:
                for path, status in (("healthz", 200), ("readyz", 503)):
                    async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                        assert answer.status == status
            ended.terminate()
            assert await ended.exit_code() == 0
        finally:
            await asyncio.to_thread(control_plane.start_apiserver)
        await jobs.create(job(replicas=1))
        await jobs.until_pods("job-0-0")
        assert patient.running
