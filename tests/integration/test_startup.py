"""The operator's checks at its start, its messages when something is missing, and its permissions:
exactly those that it uses.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from pathlib import Path

import aiohttp
import pytest
from ddp_operator.api.schema.crd import NAME, custom_resource_definition
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
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import Manifest
from ddp_operator.process import startup

from tests import cluster
from tests.good_manifests import job
from tests.integration.http_proxy import http_proxy
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.integration.rights import (
    ABOUT_OBJECTS,
    INSTALLED,
    INSTALLED_IN_ONE_NAMESPACE,
    LEASE_NAME,
    Roles,
    granted,
    namespace_of,
    permission_for,
    permissions,
    until_checks_report,
    use_every_permission,
)
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
async def roles(admin: ApiClient, jobs: Jobs) -> AsyncIterator[Roles]:
    async with granted(admin, jobs.namespace, INSTALLED) as roles:
        yield roles


@pytest.mark.parametrize(
    ("installed", "everywhere"), [(INSTALLED, True), (INSTALLED_IN_ONE_NAMESPACE, False)]
)
async def test_installed_permissions_are_exactly_those_used(
    admin: ApiClient,
    as_operator: Path,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path: Path,
    installed: Sequence[Manifest],
    *,
    everywhere: bool,
) -> None:
    own = jobs.namespace
    served = None if everywhere else own
    options = ["--leader-elect", "--lease-namespace", own]
    async with (
        granted(admin, own, installed),
        http_proxy(as_operator, tmp_path / "proxied") as proxy,
    ):
        await until_checks_report(as_operator, own, "", serves=served)
        with running_operator(
            tmp_path / "proxied", tmp_path / "log", namespace=served, options=options
        ) as process:
            await use_every_permission(proxy, jobs, kubelet)
            warns = "jobs will not avoid bad nodes, because a permission is missing" in process.log
    assert warns is not everywhere
    # With rights everywhere it may fail to act for jobs that other tests left.
    refused = [seen for seen in proxy.seen if seen.status == 403]
    assert not [seen for seen in refused if not everywhere or namespace_of(seen) in ("", own)]
    about_objects = [seen for seen in proxy.seen if seen.path.startswith(ABOUT_OBJECTS)]
    assert everywhere or {namespace_of(seen) for seen in about_objects} == {own}
    assert sorted({permission_for(seen) for seen in about_objects}) == permissions(installed)


async def test_each_missing_permission_is_named(roles: Roles, as_operator: Path) -> None:
    await until_checks_report(as_operator, roles.namespace, "")
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
        await until_checks_report(as_operator, roles.namespace, expected)


async def log_of_work(as_operator: Path, jobs: Jobs, tmp_path: Path) -> str:
    """Return the log of an operator with these rights until it has created a job's pods."""
    await until_checks_report(as_operator, jobs.namespace, "")
    options = ["--lease-namespace", jobs.namespace]
    with running_operator(
        as_operator, tmp_path / "log", namespace=None, options=options
    ) as process:
        await jobs.create(job(replicas=2))
        await jobs.until_pods("job-0-0", "job-0-1")
        return process.log


async def test_operator_that_may_not_watch_nodes_works_and_warns(
    roles: Roles, as_operator: Path, jobs: Jobs, tmp_path: Path
) -> None:
    await roles.grant(without=("watch", NODES.plural))
    warning = "jobs will not avoid bad nodes, because a permission is missing: watch nodes"
    assert warning in await log_of_work(as_operator, jobs, tmp_path)


async def test_without_permission_for_secrets_tokens_are_plain_text(
    admin: ApiClient, jobs: Jobs, as_operator: Path, tmp_path: Path
) -> None:
    roles = [role for role in INSTALLED if role["metadata"]["name"] != "ddp-operator-tokens"]
    async with granted(admin, jobs.namespace, roles):
        warning = (
            "jobs' tokens are in plain text in their pods, because a permission is missing: "
            "create secrets in all namespaces"
        )
        assert warning in await log_of_work(as_operator, jobs, tmp_path)
    pods = (await jobs.pods()).values()
    variables = [variable for pod in pods for variable in pod["spec"]["containers"][0]["env"]]
    [token] = {v["value"] for v in variables if v["name"] == "DDP_TOKEN"}
    assert len(token) == 64


async def only_line_of(process: OperatorProcess) -> str:
    """Wait until the operator has refused to start, and return the one line of its log."""
    process.may_end = True
    assert await process.exit_code() == 1
    [line] = process.log.splitlines()
    return line


async def test_operator_without_rights_ends_with_one_line(
    jobs: Jobs, as_operator: Path, tmp_path: Path
) -> None:
    with running_operator(as_operator, tmp_path / "log", namespace=jobs.namespace) as process:
        line = await only_line_of(process)
    assert "ERROR" in line
    assert f"create pods in namespace {jobs.namespace}" in line
    assert "manifests/components/one-namespace/rbac.yaml" in line


async def test_operator_without_a_cluster_ends_with_one_line(tmp_path: Path) -> None:
    with running_operator(tmp_path / "no-such-file", tmp_path / "log", namespace=None) as process:
        assert re.search(r"no kubeconfig at .*no-such-file", await only_line_of(process))


async def test_missing_crd_ends_the_operator_and_other_release_is_reported(tmp_path: Path) -> None:
    crd = custom_resource_definition()
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    status_fields = fields["status"]["properties"]
    del status_fields["progress"]["properties"]["loss"]
    old = deepcopy(crd)
    old_fields = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del old_fields["status"]["properties"]["world"]["properties"]["members"]
    status_fields["bookkeeping"]["properties"]["novelty"] = {"type": "integer"}
    fields["spec"]["properties"]["novelty"] = {"type": "integer"}
    port = await asyncio.to_thread(free_port)
    with cluster.control_plane(controllers=False) as other:
        async with ApiClient(load_credentials(kubeconfig=str(other.kubeconfig))) as client:
            assert not await check_served(client, JOBS)
            with running_operator(
                other.kubeconfig, tmp_path / "log", namespace="default", metrics_port=port
            ) as process:
                assert "kubectl apply -f crds/ddpjobs.yaml" in await only_line_of(process)
                await client.request("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), body=old)
                await eventually(lambda: check_served(client, JOBS), interval_seconds=0.05)
                process.start()
                jobs = Jobs(client, "default")
                await jobs.create(job(), name="good")
                await eventually(lambda: "drops or refuses status.world.members" in process.log)
                assert await jobs.pods("good") == {}
                path = CUSTOM_RESOURCE_DEFINITIONS.path(name=NAME)
                await client.request("PATCH", path, body=crd, content_type=MERGE_PATCH)
                await jobs.until_pods("good-0-0", name="good")
                await keeps_notes_of_a_newer_operator(client, jobs)
                await jobs.create(job(novelty=1), name="newer")
                left = await jobs.until(lambda status: bool(status.reason), "newer")
                assert left.reason == "NewerThanOperator"
                assert await jobs.pods("newer") == {}
                lines = process.log.splitlines()
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/metrics") as answer,
                ):
                    metrics = (await answer.text()).splitlines()
    older = [line for line in lines if "the CRD is older than this operator:" in line]
    assert [" status.progress.loss: " in line for line in older] == [True]
    assert (
        sum(
            "the CRD is newer" in line and " spec.novelty, status.bookkeeping.novelty " in line
            for line in lines
        )
        == 1
    )
    for sample in ("crd_lost_fields 1", "crd_unknown_fields 2", "newer_jobs 1"):
        assert f"ddp_operator_{sample}" in metrics


async def keeps_notes_of_a_newer_operator(client: ApiClient, jobs: Jobs) -> None:
    """Store a field that this operator does not know, and let it write the status twice."""
    path = JOBS.path(namespace=jobs.namespace, name="good", subresource="status")
    body = {"status": {"bookkeeping": {"novelty": 2}}}
    await client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    await jobs.set_spec("good", suspend=True)
    await jobs.until_phase("Suspended", "good")
    assert (await jobs.get("good"))["status"]["bookkeeping"]["novelty"] == 2


async def test_operator_waits_for_the_api_server_and_may_be_stopped_meanwhile(
    control_plane: cluster.ControlPlane, jobs: Jobs, tmp_path: Path
) -> None:
    port = await asyncio.to_thread(free_port)

    async def statuses() -> dict[str, int]:
        found = {}
        async with aiohttp.ClientSession() as session:
            for path in ("healthz", "readyz"):
                async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                    found[path] = answer.status
        return found

    await asyncio.to_thread(control_plane.stop_apiserver)
    with contextlib.ExitStack() as stack:
        try:
            patient, stopped = (
                stack.enter_context(
                    running_operator(
                        control_plane.kubeconfig,
                        tmp_path / name,
                        namespace=jobs.namespace,
                        health_port=health_port,
                    )
                )
                for name, health_port in (("patient", port), ("stopped", 0))
            )
            for process in (patient, stopped):
                await eventually(
                    lambda log=process: "waiting for the API server" in log.log,  # type: ignore[misc]
                    describe=lambda log=process: log.log,  # type: ignore[misc]
                )
            assert await statuses() == {"healthz": 200, "readyz": 503}
            stopped.terminate()
            assert await stopped.exit_code() == 0
        finally:
            await asyncio.to_thread(control_plane.start_apiserver)
        await jobs.create(job(replicas=1))
        await jobs.until_pods("job-0-0")

        async def ready() -> bool:
            return await statuses() == {"healthz": 200, "readyz": 200}

        await eventually(ready, interval_seconds=0.05)
        assert patient.running
