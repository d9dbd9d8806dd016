"""One real API server for all integration tests of a session, and a namespace for each test.

There is no kubelet and no scheduler: pods stay as they are until a test plays those parts.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from ddp_operator.kube import ApiClient, load_credentials
from ddp_operator.ports import ClusterError

from tests import cluster


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
            pytest.skip(f"NO API SERVER ON THIS MACHINE: {reason}")
        yield running


@pytest.fixture
async def admin(control_plane: cluster.ControlPlane) -> AsyncIterator[ApiClient]:
    """A client that may do everything."""
    async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(admin: ApiClient) -> AsyncIterator[str]:
    """The name of a fresh namespace, deleted in the background afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await admin.request("POST", "/api/v1/namespaces", body=body)
    yield name
    with contextlib.suppress(ClusterError):  # a test may have left the server stopped
        await admin.request("DELETE", f"/api/v1/namespaces/{name}", max_attempts=1)
