"""What the operator checks before it works, what it says when something is missing, and that the
permissions it is installed with are those it needs: no fewer, no more.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from ddp_operator import startup
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.kube import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    SECRETS,
    ApiClient,
    check_served,
    load_credentials,
)

from tests import cluster
from tests.good_manifests import job
from tests.integration.http_proxy import http_proxy
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import running_operator
from tests.integration.rights import (
    ABOUT_OBJECTS,
    INSTALLED,
    LEASE_NAME,
    Roles,
    granted,
    namespace_of,
    permissions,
    question,
    until_said,
    use_every_permission,
)
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
async def roles(admin: ApiClient, jobs: Jobs) -> AsyncIterator[Roles]:
    async with granted(admin, jobs.namespace, INSTALLED) as roles:
        yield roles


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
        used = {question(seen) for seen in proxy.seen if seen.path.startswith(ABOUT_OBJECTS)}
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
    assert sorted(used) == permissions(INSTALLED)


async def test_each_missing_permission_is_named(roles: Roles, as_operator: Path) -> None:
    await until_said(as_operator, roles.namespace, "")
    for verb, resource in permissions(INSTALLED):
        if resource in (NODES.plural, CUSTOM_RESOURCE_DEFINITIONS.plural, "pods/log"):
            continue  # it works without
        await roles.grant(without=(verb, resource))
        groups = {"ddpjobs": JOBS.group, NETWORK_POLICIES.plural: NETWORK_POLICIES.group}
        group = groups.get(resource.partition("/")[0])
        what, where = f"{verb} {resource}{f'.{group}' if group else ''}", "all namespaces"
        own = {
            LEASES: LEASE_NAME,
            SECRETS: startup.SECRET_NAME,
            CONFIG_MAPS: startup.SIDE_CARS_NAME,
        }
        for kind, own_name in own.items():
            if resource == kind.plural:
                name = "" if verb == "create" else f" {own_name}"
                what, where = f"{verb} {kind}{name}", f"namespace {roles.namespace}"
        expected = f"missing permissions (see manifests/install/rbac.yaml): {what} in {where}"
        await until_said(as_operator, roles.namespace, expected)


async def log_of_work(as_operator: Path, jobs: Jobs, tmp_path: Path) -> str:
    """What an operator with these rights says until it has created a job's pods."""
    await until_said(as_operator, jobs.namespace, "")
    options = ["--lease-namespace", jobs.namespace]
    with running_operator(
        as_operator, tmp_path / "log", namespace=None, options=options
    ) as process:
        await jobs.create(job(replicas=2))
        await jobs.until_pods("job-0-0", "job-0-1")
        return process.log


async def test_without_a_look_at_nodes_it_works_and_says_what_it_will_not_do(
    roles: Roles, as_operator: Path, jobs: Jobs, tmp_path: Path
) -> None:
    await roles.grant(without=("watch", NODES.plural))
    said = "jobs will not avoid bad nodes, because a permission is missing: watch nodes"
    assert said in await log_of_work(as_operator, jobs, tmp_path)


async def test_without_the_right_to_create_secrets_tokens_are_in_plain_text(
    admin: ApiClient, jobs: Jobs, as_operator: Path, tmp_path: Path
) -> None:
    roles = [role for role in INSTALLED if role["metadata"]["name"] != "ddp-operator-tokens"]
    async with granted(admin, jobs.namespace, roles):
        said = (
            "jobs' tokens are in plain text in their pods, because a permission is missing: "
            "create secrets in all namespaces"
        )
        assert said in await log_of_work(as_operator, jobs, tmp_path)
    pods = (await jobs.pods()).values()
    variables = [each for pod in pods for each in pod["spec"]["containers"][0]["env"]]
    [token] = {each["value"] for each in variables if each["name"] == "DDP_TOKEN"}
    assert len(token) == 64


async def test_without_rights_it_ends_with_one_line(
    jobs: Jobs, as_operator: Path, tmp_path: Path
) -> None:
    with running_operator(as_operator, tmp_path / "log", namespace=jobs.namespace) as process:
        process.told_to_end = True
        assert await process.exit_code() == 1
        [line] = process.log.splitlines()
    assert "ERROR" in line
    assert f"create pods in namespace {jobs.namespace}" in line
    assert "manifests/components/one-namespace/rbac.yaml" in line


async def test_without_the_crd_it_ends_with_one_line(tmp_path: Path) -> None:
    with cluster.control_plane(controllers=False) as bare:
        async with ApiClient(load_credentials(kubeconfig=str(bare.kubeconfig))) as client:
            assert not await check_served(client, JOBS)
        with running_operator(bare.kubeconfig, tmp_path / "log", namespace=None) as process:
            process.told_to_end = True
            assert await process.exit_code() == 1
            [line] = process.log.splitlines()
    assert "kubectl apply -f crds/ddpjobs.yaml" in line


async def test_a_crd_of_another_release_is_told_and_stops_nothing(tmp_path: Path) -> None:
    crd = custom_resource_definition()
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del fields["status"]["properties"]["goodput"]
    fields["spec"]["properties"]["novelty"] = {"type": "integer"}
    port = await asyncio.to_thread(free_port)
    with cluster.control_plane(controllers=False) as other:
        async with ApiClient(load_credentials(kubeconfig=str(other.kubeconfig))) as client:
            path = CUSTOM_RESOURCE_DEFINITIONS.path()
            await client.request("POST", path, body=crd)
            await eventually(lambda: check_served(client, JOBS), interval_seconds=0.05)
            with running_operator(
                other.kubeconfig, tmp_path / "log", namespace="default", metrics_port=port
            ) as process:
                jobs = Jobs(client, "default")
                await jobs.create(job(), name="good")
                await jobs.until_pods("good-0-0", name="good")
                await jobs.create(job(novelty=1), name="newer")
                left = await jobs.until(lambda status: bool(status.reason), "newer")
                assert left.reason == "NewerThanOperator"
                assert await jobs.pods("newer") == {}
                said = process.log.splitlines()
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/metrics") as answer,
                ):
                    metrics = (await answer.text()).splitlines()
    assert sum("the CRD is older" in line and " status.goodput: " in line for line in said) == 1
    assert sum("the CRD is newer" in line and " spec.novelty " in line for line in said) == 1
    for sample in ("crd_lost_fields 1", "crd_unknown_fields 1", "newer_jobs 1"):
        assert f"ddp_operator_{sample}" in metrics


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
