"""The operator's metrics: public, or only for permitted users."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from ddp_operator.kube import SERVICES, ApiClient, check_access, load_credentials
from ddp_operator.process import startup

from tests import cluster
from tests.good_manifests import job
from tests.integration.jobs import Jobs
from tests.integration.operator_process import running_operator
from tests.integration.rights import (
    INSTALLED_IN_ONE_NAMESPACE,
    granted,
    roles_in,
    until_checks_report,
)
from tests.ports import free_port
from tests.waiting import eventually

LEADS = "\nddp_operator_leader 1\n"
REVIEWER, READER = roles_in("components/metrics-auth/rbac.yaml")


async def scrape(port: int, token: str | None = None) -> tuple[int, str]:
    """Return status and body; 0 while nobody listens."""
    headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{port}/metrics"
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return answer.status, await answer.text()
    return 0, ""


async def until_scraped(port: int, token: str | None, status: int, text: str = "") -> None:
    """Wait until a scrape has this status, and this text in it."""
    answer = (0, "")

    async def as_expected() -> bool:
        nonlocal answer
        answer = await scrape(port, token)
        return answer[0] == status and text in answer[1]

    await eventually(as_expected, interval_seconds=0.1, describe=lambda: answer)


@pytest.fixture
def port() -> int:
    return free_port()


async def test_everybody_sees_metrics_and_api_errors_are_counted(
    admin: ApiClient, control_plane: cluster.ControlPlane, jobs: Jobs, port: int, tmp_path: Path
) -> None:
    taken = {"metadata": {"name": "job"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}
    await admin.request("POST", SERVICES.path(namespace=jobs.namespace), body=taken)
    await jobs.create(job())
    with running_operator(
        control_plane.kubeconfig, tmp_path / "log", namespace=jobs.namespace, metrics_port=port
    ):
        await until_scraped(port, None, 200, LEADS)
        await until_scraped(port, None, 200, '\nddp_operator_api_errors_total{code="409"} ')


async def token_of(admin: ApiClient, namespace: str, account: str) -> str:
    """Create a service account and return a token for it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await admin.request("POST", accounts, body={"metadata": {"name": account}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await admin.request("POST", f"{accounts}/{account}/token", body=request)
    token: str = answer["status"]["token"]
    return token


async def until_allowed(kubeconfig: Path) -> None:
    """Wait until the operator may review tokens and access."""

    async def nothing_is_missing() -> bool:
        async with ApiClient(load_credentials(kubeconfig=str(kubeconfig))) as client:
            return await check_access(client, startup.NEEDED_TO_REVIEW) == []

    await eventually(nothing_is_missing, interval_seconds=0.05)


async def test_with_metrics_auth_only_permitted_users_see_metrics(
    admin: ApiClient, as_operator: Path, jobs: Jobs, port: int, tmp_path: Path
) -> None:
    own = jobs.namespace
    token = await token_of(admin, own, "prometheus")
    account = {"kind": "ServiceAccount", "name": "prometheus", "namespace": own}
    async with granted(admin, own, INSTALLED_IN_ONE_NAMESPACE):
        await until_checks_report(as_operator, own, "", serves=own)
        with running_operator(
            as_operator,
            tmp_path / "log",
            namespace=own,
            metrics_port=port,
            options=["--metrics-auth", "--lease-namespace", own],
        ) as process:
            process.may_end = True
            assert await process.exit_code() == 1
            [line] = process.log.splitlines()
            assert "manifests/components/metrics-auth/rbac.yaml" in line
            assert "create tokenreviews.authentication.k8s.io in all namespaces" in line
            async with granted(admin, own, [REVIEWER]):
                await until_allowed(as_operator)
                process.start()
                await process.serving()
                assert (await scrape(port))[0] == 401
                assert (await scrape(port, "wrong"))[0] == 401
                assert (await scrape(port, token))[0] == 403
                async with granted(admin, own, [READER], to=account):
                    await until_scraped(port, token, 200, LEADS)
                # The answer is cached for a minute.
                assert (await scrape(port, token))[0] == 200
