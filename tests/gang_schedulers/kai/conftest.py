"""A control plane with KAI Scheduler; the tests play the kubelet."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from ddp_operator.kube import ApiClient

from tests import cluster
from tests.gang_schedulers.kai import scheduler
from tests.integration.conftest import admin, jobs, kubelet, namespace, shared_operator
from tests.integration.queues.nodes import NodePool, new_pool
from tests.skipping import skip_or_fail

__all__ = ["admin", "jobs", "kubelet", "namespace", "shared_operator"]

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """A control plane with KAI Scheduler alone."""
    with contextlib.ExitStack() as stack:
        programs = scheduler.find()
        try:
            running = stack.enter_context(cluster.control_plane(controllers=True, scheduler=False))
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("API SERVER", reason)
        scheduler.start(programs, running)
        yield running


@pytest.fixture
async def pool(admin: ApiClient, namespace: str) -> AsyncIterator[NodePool]:
    """Four nodes with one GPU each."""
    async with new_pool(admin, namespace, chip=GPU) as pool:
        yield pool


@pytest.fixture
async def queues(admin: ApiClient, namespace: str) -> AsyncIterator[None]:
    """A queue that owns no GPU, and one that owns two of the four."""
    made = [*scheduler.queues(namespace, {f"{namespace}-guest": 0, f"{namespace}-owner": 2})]
    for body in made:
        await admin.request("POST", scheduler.QUEUES.path(), body=body)
    yield
    for body in reversed(made):
        await admin.request("DELETE", scheduler.QUEUES.path(name=body["metadata"]["name"]))
