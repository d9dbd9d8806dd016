"""`kubectl ddp ui`, from its start to its end."""

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

from tests.unit.cli.conftest import Ddp, ddp, kubeconfig, server
from tests.unit.cli.jobs import training
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["ddp", "kubeconfig", "server"]


async def test_page_is_served_until_sigint(server: FakeApiServer, kubeconfig: Path) -> None:
    server.create("ddpjobs", training())
    program = [sys.executable, "-m", "ddp_client.cli", "--kubeconfig", str(kubeconfig)]
    run = await asyncio.create_subprocess_exec(
        *program, "ui", NAME, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert run.stdout is not None
    async with asyncio.timeout(60):
        first = (await run.stdout.readline()).decode()
        found = re.fullmatch(
            rf"serving until Ctrl-C: http://127\.0\.0\.1:(\d+)/jobs/research/{NAME}\?token=[\w-]{{43}}\n",
            first,
        )
        assert found, first
        idle = socket.create_connection(("127.0.0.1", int(found[1])))
        os.kill(run.pid, signal.SIGINT)
        _, said = await run.communicate()
    idle.close()
    assert (run.returncode, said) == (0, b"")


async def test_used_port_is_refused(ddp: Ddp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = await ddp("ui", "--port", str(port))
    assert result.exit_code == 1
    assert f"cannot listen on port {port} (--port): " in result.output
    assert len(result.output.splitlines()) == 1


async def test_invalid_name_is_refused(ddp: Ddp) -> None:
    result = await ddp("ui", "A b")
    assert result.exit_code == 2
    assert "invalid name" in result.output
