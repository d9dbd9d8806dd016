import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ddp_client.cli.__main__ import program
from ddp_client.remote.cluster import JOBS, Cluster
from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.credentials import load_credentials

from tests.unit.kube.conftest import kubeconfig, server
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["kubeconfig", "server"]

Ddp = Callable[..., Awaitable[Result]]


@pytest.fixture
def ddp(server: FakeApiServer, kubeconfig: Path) -> Ddp:
    """Runs the program with these arguments, on a server that serves DDPJobs."""
    server.resource_lists[JOBS.root] = [JOBS.plural]

    async def run(*arguments: str, input: str | None = None) -> Result:
        given = ["--kubeconfig", str(kubeconfig), *arguments]
        # The program runs its own event loop; the server needs this one.
        return await asyncio.to_thread(CliRunner().invoke, program, given, input=input)

    return run


@pytest.fixture
async def cluster(server: FakeApiServer, kubeconfig: Path) -> AsyncIterator[Cluster]:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    credentials = load_credentials(kubeconfig=str(kubeconfig))
    async with ApiClient(credentials, timeout_seconds=5, max_attempts=1) as client:
        yield Cluster(client)
