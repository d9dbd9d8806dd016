"""The API requests of each command, as documented."""

import re
from pathlib import Path

import pytest
from ddp_client.cli.__main__ import program

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.cli.test_logs import started
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.kube.fake_channels import ProgramRun

PAGE = Path(__file__).parents[3] / "docs/how-to/command-line.md"
_ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \|", re.M)
ON_PAGE = {command: int(cost) for command, cost in _ROW.findall(PAGE.read_text())}


async def answers(run: ProgramRun) -> int:
    """Answers any program in a pod with nothing."""
    await run.print(b"")
    return 0


@pytest.fixture(autouse=True)
async def running(server: FakeApiServer) -> None:
    server.create("ddpjobs", training())
    for index in range(2):
        name = started(server, index)
        server.logs[name] = b"2026-01-01T00:00:00Z hello\n"
        server.programs[name] = answers


@pytest.mark.parametrize("command", ON_PAGE)
async def test_command_costs_the_requests_on_the_page(
    ddp: Ddp, server: FakeApiServer, tmp_path: Path, command: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    words = command.replace("NAME", NAME).replace("train.py", str(script)).split()
    words = [str(tmp_path) if word == "." else word for word in words]
    before = len(server.requests)
    result = await ddp(*words)
    assert "Usage" not in result.output, result.output
    assert len(server.requests) - before == ON_PAGE[command], [
        (request.method, request.path) for request in server.requests[before:]
    ]


def test_page_has_every_command_that_uses_a_cluster() -> None:
    local = {"convert", "completion"}
    lasting = {"port-forward", "profile", "bundle", "doctor", "ui", "mcp"}
    told = {command.split()[0] for command in ON_PAGE}
    assert told == program.commands.keys() - local - lasting
