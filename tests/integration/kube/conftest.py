"""What tests of the client, the reflector and KubeCluster have in common."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.kube import (
    ApiClient,
    load_credentials,
)

from tests.cluster import ControlPlane
from tests.integration.kube.view import JOBS, View, rewritten, viewing
from tests.integration.tcp_proxy import TcpProxy


@pytest.fixture
async def view(admin: ApiClient, namespace: str) -> AsyncIterator[View]:
    async with viewing(admin, namespace) as started:
        yield started


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(control_plane.server).running() as running:
        yield running


@pytest.fixture
async def proxied(
    control_plane: ControlPlane, proxy: TcpProxy, tmp_path: Path
) -> AsyncIterator[ApiClient]:
    """A client that reaches the API server through `proxy`."""

    def through_proxy(config: dict[str, Any]) -> None:
        config["clusters"][0]["cluster"]["server"] = proxy.url

    path = rewritten(control_plane.kubeconfig, tmp_path / "proxied", through_proxy)
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        yield client


@pytest.fixture
async def job(admin: ApiClient, namespace: str) -> dict[str, Any]:
    """The object that owns pods in these tests."""
    manifest = {
        "apiVersion": f"{JOBS.group}/{JOBS.version}",
        "kind": "Ingress",
        "metadata": {"namespace": namespace, "name": "job"},
        "spec": {"defaultBackend": {"service": {"name": "none", "port": {"number": 80}}}},
    }
    created: dict[str, Any] = await admin.request(
        "POST", JOBS.path(namespace=namespace), body=manifest
    )
    return created
