"""A control plane with a real gang scheduler; the tests play the kubelet."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from ddp_operator.kube import ApiClient

from tests import cluster
from tests.gang_schedulers import coscheduling
from tests.integration.conftest import admin, jobs, kubelet, namespace, shared_operator
from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.conftest import playing
from tests.integration.queues.nodes import NodePool, new_pool
from tests.skipping import skip_or_fail

__all__ = ["admin", "jobs", "kubelet", "namespace", "shared_operator"]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """A control plane with only a gang scheduler."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.control_plane(controllers=True, scheduler=False))
            coscheduling.start(running)
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("COSCHEDULING", reason)
        yield running


@pytest.fixture
async def pool(admin: ApiClient, namespace: str) -> AsyncIterator[NodePool]:
    """Four nodes with one chip each."""
    async with new_pool(admin, namespace) as pool:
        yield pool


@pytest.fixture
async def life(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """Run scheduled pods and remove deleted ones automatically."""
    kubelet.binds = False
    async with playing(kubelet):
        yield
