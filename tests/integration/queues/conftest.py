"""A control plane with Kueue and one operator for all namespaces; tests play the kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from ddp_operator.kube import ApiClient, load_credentials

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.integration.conftest import install_crd, new_namespace
from tests.integration.kubelet import NODE, FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.queue import Queue, installed, new_queue, remove_queue
from tests.skipping import skip_or_fail

NODE_OBJECT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """A control plane for the queue tests, because Kueue's webhook sees every pod in it."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.control_plane(collects_pods=True))
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("API SERVER", reason)
        running.client.request("POST", "/api/v1/nodes", NODE_OBJECT)
        yield running


@pytest.fixture(scope="session")
def kueue(control_plane: cluster.ControlPlane) -> Kueue:
    """Kueue beside the control plane."""
    return installed(control_plane)


@pytest.fixture
async def namespace(admin: ApiClient) -> AsyncIterator[str]:
    """The name of a new namespace; its queue is deleted after the test."""
    async with new_namespace(admin) as name:
        yield name
        await remove_queue(admin, name)


@pytest.fixture
async def queue(admin: ApiClient, namespace: str) -> Queue:
    """The queue `team` of the test's namespace, with quota for one job of two pods."""
    return await new_queue(admin, namespace)


@contextlib.asynccontextmanager
async def playing(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """Run the pods that Kueue admits and end deleted ones, as a kubelet does."""

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
    """Admitted pods run and deleted ones end by themselves."""
    async with playing(kubelet):
        yield


@pytest.fixture(scope="session")
def shared_operator(
    control_plane: cluster.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator of all namespaces and tests, because starting one takes longer than most."""

    async def prepare() -> None:
        async with ApiClient(load_credentials(kubeconfig=str(control_plane.kubeconfig))) as client:
            await install_crd(client)

    asyncio.run(prepare())
    log = tmp_path_factory.mktemp("operator") / "log"
    with flawless_operator(control_plane.kubeconfig, log, namespace=None) as process:
        yield process


@pytest.fixture
def operator(shared_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    """The operator; a test may kill or freeze it, and it runs again afterwards."""
    earlier = len(shared_operator.log)
    yield shared_operator
    print(shared_operator.log[earlier:])
    if shared_operator.running:
        shared_operator.thaw()
        return
    was_killed = shared_operator.may_end
    shared_operator.start()
    assert was_killed
