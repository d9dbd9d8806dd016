"""`kubectl ddp mcp`, asked over stdio by the SDK's own client."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ddp_operator.api import reasons
from ddp_operator.cli.__main__ import program
from ddp_operator.cli.commands.mcp import MISSING
from ddp_operator.client.cluster import JOBS
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import TextContent

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

TOOLS = {"list_jobs", "status", "why", "logs", "report", "explain_reason"}


@pytest.fixture
async def server_program(server: FakeApiServer, kubeconfig: Path) -> StdioServerParameters:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    server.create("ddpjobs", training())
    command = ["-m", "ddp_operator.cli", "--kubeconfig", str(kubeconfig), "mcp"]
    return StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))


async def _answer(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    [part] = result.content
    assert isinstance(part, TextContent)
    return bool(result.is_error), part.text


async def test_an_assistant_gets_the_words_of_the_commands(
    server_program: StdioServerParameters, ddp: Ddp, server: FakeApiServer
) -> None:
    async with Client(stdio_client(server_program)) as assistant:
        tools = (await assistant.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        for tool, command in (("list_jobs", ["list"]), ("why", ["why", NAME])):
            arguments = {"name": NAME} if NAME in command else {}
            is_error, text = await _answer(assistant, tool, **arguments)
            assert not is_error
            assert text.split() == (await ddp(*command)).stdout.split()
        is_error, text = await _answer(assistant, "status", name=NAME)
        assert not is_error
        assert NAME in text
        assert {request.method for request in server.requests} == {"GET"}


async def test_errors_are_those_of_the_commands(server_program: StdioServerParameters) -> None:
    async with Client(stdio_client(server_program)) as assistant:
        is_error, text = await _answer(assistant, "status", name="missing")
        assert is_error
        assert "there is no job missing in namespace research" in text
        is_error, text = await _answer(assistant, "why", name="--help")
        assert is_error
        assert "invalid name" in text
        is_error, text = await _answer(assistant, "why", name=NAME, hang=True)
        assert is_error
        assert "--hang: 0 of 2 pods exist" in text
        is_error, text = await _answer(assistant, "logs", name=NAME, lines=10**9)
        assert is_error
        assert "500" in text


async def test_a_reason_is_explained(server_program: StdioServerParameters) -> None:
    async with Client(stdio_client(server_program)) as assistant:
        is_error, text = await _answer(assistant, "explain_reason", reason="NoProgressReports")
        assert not is_error
        assert reasons.OWN["NoProgressReports"].remedy in text
        is_error, text = await _answer(assistant, "explain_reason", reason="NoProgressReport")
        assert is_error
        assert "did you mean NoProgressReports" in text


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "ddp_operator.cli.mcp_server", raising=False)
    result = CliRunner().invoke(program, ["mcp"])
    assert result.exit_code == 1
    assert MISSING in result.stderr
