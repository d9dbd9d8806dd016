import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ddp_client import AsyncClient
from ddp_client.remote.cluster import JOBS

from tests.unit.kube.conftest import kubeconfig, server
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["kubeconfig", "server"]


@pytest.fixture
async def client(server: FakeApiServer, kubeconfig: Path) -> AsyncIterator[AsyncClient]:
    """A client of a server that serves DDPJobs."""
    server.resource_lists[JOBS.root] = [JOBS.plural]
    async with asyncio.timeout(60), AsyncClient(kubeconfig=kubeconfig) as client:
        yield client
