"""Tools of `kubectl ddp mcp`, called in the test's process."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ddp_client.cli import mcp_server
from ddp_client.cli.__main__ import program
from ddp_client.cli.commands.mcp import MISSING
from ddp_client.remote.cluster import JOBS
from ddp_client.views import reasons
from mcp import Client
from mcp.types import TextContent

from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer


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
        await answer_of(assistant, "result", name=NAME)
        is_error, text = await answer_of(assistant, "logs", name=NAME, lines=10**9)
        assert is_error
        assert "500" in text
    assert commands == [
        ["--context=x", "list", "-A"],
        ["--context=x", "why", "--hang", "--", "--help"],
        ["--context=x", "logs", "--tail=50", "--rank=1", "--namespace=a", "--", NAME],
        ["--context=x", "result", "-o", "json", "--", NAME],
    ]


async def test_reason_is_explained() -> None:
    async with Client(mcp_server.server([])) as assistant:
        is_error, text = await answer_of(assistant, "explain_reason", reason="NoProgressReports")
        assert not is_error
        assert reasons.OWN["NoProgressReports"].remedy in text
        is_error, text = await answer_of(assistant, "explain_reason", reason="NoProgressReport")
        assert is_error
        assert "did you mean NoProgressReports" in text


@pytest.mark.parametrize("path_entries", [[], ["."], [""]], ids=["unset", "relative", "empty"])
async def test_modules_of_the_working_directory_are_not_imported(
    path_entries: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("click", "yaml", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(tmp_path)
    # Python makes entries of PYTHONPATH absolute at its start.
    absolute = map(os.path.abspath, path_entries)
    monkeypatch.setattr(sys, "path", [*path_entries, *absolute, *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path_entries))
    assert "List the jobs" in await mcp_server._output(["list", "--help"])
    assert not (tmp_path / "imported").exists()


async def test_relative_kubeconfig_is_read_in_the_working_directory(
    server: FakeApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    monkeypatch.chdir(kubeconfig.parent)
    monkeypatch.setenv("KUBECONFIG", kubeconfig.name)
    assert "There are no DDPJobs" in await mcp_server._output(["list"])


def test_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "ddp_client.cli.mcp_server", raising=False)
    result = CliRunner().invoke(program, ["mcp"])
    assert result.exit_code == 1
    assert MISSING in result.stderr
