import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ddp_operator.cli.__main__ import program
from ddp_operator.client.cluster import JOBS

from tests.unit.kube.conftest import kubeconfig, server
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["kubeconfig", "server"]

Ddp = Callable[..., Awaitable[Result]]


@pytest.fixture
def ddp(server: FakeApiServer, kubeconfig: Path) -> Ddp:
    """Runs the program with these arguments, on a server that knows DDPJobs."""
    server.resource_lists[JOBS.root] = [JOBS.plural]

    async def run(*arguments: str, input: str | None = None) -> Result:
        given = ["--kubeconfig", str(kubeconfig), *arguments]
        # It runs an event loop of its own; the server needs this one meanwhile.
        return await asyncio.to_thread(CliRunner().invoke, program, given, input=input)

    return run
