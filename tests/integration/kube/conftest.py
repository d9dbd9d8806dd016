"""Fixtures for tests of the client, the reflector and KubeCluster."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.kube import ApiClient, load_credentials

from tests.cluster import ControlPlane
from tests.integration.http_proxy import HttpProxy, http_proxy
from tests.integration.kube.view import JOBS, View, viewing


@pytest.fixture
async def view(admin: ApiClient, namespace: str) -> AsyncIterator[View]:
    async with viewing(admin, namespace) as started:
        yield started


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[HttpProxy]:
    async with http_proxy(control_plane.kubeconfig, tmp_path / "proxied") as running:
        yield running


@pytest.fixture
async def proxied(proxy: HttpProxy, tmp_path: Path) -> AsyncIterator[ApiClient]:  # noqa: ARG001
    """A client that reaches the API server through `proxy`."""
    credentials = load_credentials(kubeconfig=str(tmp_path / "proxied"))
    async with ApiClient(credentials) as client:
        yield client


@pytest.fixture
async def job(admin: ApiClient, namespace: str) -> dict[str, Any]:
    """The owner of pods in these tests."""
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
