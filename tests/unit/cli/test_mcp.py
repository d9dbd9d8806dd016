"""Tools of `kubectl ddp mcp`, called in the test's process."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from ddp_operator.api import reasons
from ddp_operator.cli import mcp_server
from ddp_operator.cli.__main__ import program
from ddp_operator.cli.commands.mcp import MISSING
from mcp import Client
from mcp.types import TextContent

from tests.unit.job.builders import NAME


async def answer_of(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    [part] = result.content
    assert isinstance(part, TextContent)
    return bool(result.is_error), part.text


async def test_tools_run_commands_with_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    async def run(arguments: Sequence[str]) -> str:
        commands.append([*arguments])
        return "done"

    monkeypatch.setattr(mcp_server, "_output", run)
    async with Client(mcp_server.server(["--context=x"])) as assistant:
        await answer_of(assistant, "list_jobs", all_namespaces=True)
        await answer_of(assistant, "why", name="--help", hang=True)
        assert await answer_of(assistant, "logs", name=NAME, rank=1, namespace="a") == (
            False,
            "done",
        )
        is_error, text = await answer_of(assistant, "logs", name=NAME, lines=10**9)
        assert is_error
        assert "500" in text
    assert commands == [
        ["--context=x", "list", "-A"],
        ["--context=x", "why", "--hang", "--", "--help"],
        ["--context=x", "logs", "--tail=50", "--rank=1", "--namespace=a", "--", NAME],
    ]


async def test_reason_is_explained() -> None:
    async with Client(mcp_server.server([])) as assistant:
        is_error, text = await answer_of(assistant, "explain_reason", reason="NoProgressReports")
        assert not is_error
        assert reasons.OWN["NoProgressReports"].remedy in text
        is_error, text = await answer_of(assistant, "explain_reason", reason="NoProgressReport")
        assert is_error
        assert "did you mean NoProgressReports" in text


def test_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "ddp_operator.cli.mcp_server", raising=False)
    result = CliRunner().invoke(program, ["mcp"])
    assert result.exit_code == 1
    assert MISSING in result.stderr
