"""A control plane with Kueue; the tests still play the kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ddp_operator.kube import ApiClient

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.integration.conftest import new_namespace
from tests.integration.jobs import Jobs
from tests.integration.kubelet import NODE, FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.queue import Queue, installed, new_queue, remove_queue
from tests.skipping import skip_or_fail

NODE_OBJECT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """One of its own, in which every pod asks Kueue; pods that can run nowhere are collected."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.control_plane(collects_pods=True))
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("API SERVER", reason)
        running.client.request("POST", "/api/v1/nodes", NODE_OBJECT)
        yield running


@pytest.fixture(scope="session")
def kueue(control_plane: cluster.ControlPlane) -> Kueue:
    """The Kueue beside it."""
    return installed(control_plane)


@pytest.fixture
async def namespace(admin: ApiClient) -> AsyncIterator[str]:
    """The name of a fresh namespace, whose queue goes with it."""
    async with new_namespace(admin) as name:
        yield name
        await remove_queue(admin, name)


@pytest.fixture
async def queue(admin: ApiClient, namespace: str) -> Queue:
    """The queue `team` of the test's namespace, with quota for one job of two pods."""
    return await new_queue(admin, namespace)


@contextlib.asynccontextmanager
async def playing(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """Have pods that Kueue lets run come to life, and deleted ones end, by themselves."""

    async def play() -> None:
        while True:
            await kubelet.live()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(play())
    yield
    assert not task.done(), task.exception()
    task.cancel()


@pytest.fixture
async def life(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """Pods that Kueue lets run come to life, and deleted ones end, by themselves."""
    async with playing(kubelet):
        yield


@pytest.fixture
def operator(
    control_plane: cluster.ControlPlane, jobs: Jobs, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator, for the test's namespace alone."""
    log = tmp_path / "log"
    with flawless_operator(control_plane.kubeconfig, log, namespace=jobs.namespace) as process:
        yield process
