import gzip
from pathlib import Path

import pytest
from aiohttp import web
from ddp_client.cli.commands.pods import profile

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.cli.test_logs import started
from tests.unit.cli.test_stacks import Launcher, launcher, pods, under
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

__all__ = ["launcher", "pods"]

TRACE = gzip.compress(b'{"traceEvents": []}')


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "POLL_SECONDS", 0.01)


async def test_traces_of_chosen_ranks_are_fetched(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str], tmp_path: Path
) -> None:
    answers = [b"", b"", b"", TRACE, TRACE]  # two requests, then one for an unfinished trace
    launcher.answer = lambda: web.Response(body=answers.pop(0))
    server.programs = dict.fromkeys(pods, under(launcher))
    ranks = ("--rank", "0", "--rank", "1")
    result = await ddp("profile", NAME, "--steps", "3", *ranks, "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    for rank in (0, 1):
        path = tmp_path / f"{NAME}-rank-{rank}.json.gz"
        assert path.read_bytes() == TRACE
        assert str(path) in result.stdout
        assert f"/profile?ranks={rank}&steps=3" in launcher.asked
        assert f"/trace?ranks={rank}" in launcher.asked
    again = await ddp("profile", NAME, "-o", str(tmp_path))
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    assert len(launcher.asked) == 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.Response(status=404), "use a newer trainer image"),
        (web.Response(status=400, text="it takes no steps through ddp_trainer"), "takes no steps"),
        (web.Response(body=b"nonsense"), "is not a trace"),
        (web.Response(body=b""), "no trace after 1 s"),
    ],
)
async def test_missing_trace_names_the_reason(
    ddp: Ddp,
    server: FakeApiServer,
    launcher: Launcher,
    pods: list[str],
    tmp_path: Path,
    answer: web.Response,
    why: str,
) -> None:
    status, body = answer.status, answer.body
    launcher.answer = lambda: web.Response(status=status, body=body)
    server.programs = dict.fromkeys(pods, under(launcher))
    # Each request starts a Python, which takes more than a second on a busy machine.
    timeout = "1s" if why.startswith("no trace") else "60s"
    result = await ddp("profile", NAME, "-o", str(tmp_path), "--timeout", timeout)
    assert result.exit_code == 1
    assert "error: rank 0: " in result.stderr
    assert why in result.stderr
    assert not (tmp_path / f"{NAME}-rank-0.json.gz").exists()


async def test_invalid_ranks_and_ended_pods_are_refused(
    ddp: Ddp, server: FakeApiServer, tmp_path: Path
) -> None:
    server.create("ddpjobs", training())
    started(server, 0, ended=True)
    result = await ddp("profile", NAME, "-o", str(tmp_path))
    assert "rank 0: its pod is not running" in result.stderr
    result = await ddp("profile", NAME, "--rank", "7", "-o", str(tmp_path))
    assert "the job has ranks 0 to 1 only" in result.stderr
    many = [word for rank in range(9) for word in ("--rank", str(rank))]
    result = await ddp("profile", NAME, *many)
    assert (result.exit_code, "use it at most 8 times" in result.stderr) == (2, True)
    assert not (tmp_path / f"{NAME}-rank-0.json.gz").exists()
