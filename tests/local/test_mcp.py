"""`kubectl ddp mcp` as a program, called over stdio by the SDK's own client."""

import os
import sys
from pathlib import Path

from ddp_client.remote.cluster import JOBS
from mcp import Client, StdioServerParameters, stdio_client

from tests.unit.cli.conftest import Ddp, ddp, kubeconfig, server
from tests.unit.cli.jobs import training
from tests.unit.cli.test_mcp import answer_of
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["ddp", "kubeconfig", "server"]

TOOLS = {"list_jobs", "status", "why", "logs", "result", "report", "explain_reason"}


async def test_assistant_gets_the_output_and_errors_of_the_commands(
    ddp: Ddp, server: FakeApiServer, kubeconfig: Path
) -> None:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    server.create("ddpjobs", training())
    command = ["-m", "ddp_client.cli", "--kubeconfig", str(kubeconfig), "mcp"]
    program = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(stdio_client(program)) as assistant:
        tools = (await assistant.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        is_error, text = await answer_of(assistant, "list_jobs")
        assert not is_error
        assert text.split() == (await ddp("list")).stdout.split()
        is_error, text = await answer_of(assistant, "result", name=NAME)
        assert not is_error
        assert text.strip() == (await ddp("result", NAME, "-o", "json")).stdout.strip()
        is_error, text = await answer_of(assistant, "status", name="missing")
        assert is_error
        assert "there is no job missing in namespace research" in text
        assert {request.method for request in server.requests} == {"GET"}
