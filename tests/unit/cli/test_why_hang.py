"""`kubectl ddp why NAME --hang`: asked live, it names the rank only if the others still wait."""

import asyncio
import json
from collections.abc import Callable

import pytest
from aiohttp import web
from ddp_client.cli.commands.pods import hang

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.cli.test_logs import started
from tests.unit.cli.test_stacks import Launcher, in_pod, launcher, under
from tests.unit.hang.test_hangs import LOADS, STEP, WAITS, answer, dumps, shown
from tests.unit.job.builders import NAME, NAMESPACE
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.kube.fake_channels import FakeProgram, ProgramRun

__all__ = ["launcher"]

SENTENCE = "rank 1 did not enter all_reduce 2 of the default group; 1 rank waits since"


def hanging(**late: str) -> bytes:
    """Return the answer of a rank that waits, and of one that is elsewhere."""
    traces = dumps(missing=1, ranks=2)
    waits = shown(0, WAITS, STEP, trace=traces[0])
    return answer(waits, shown(1, LOADS, STEP, trace=traces[1]) if not late else shown(1, **late))


def said(*bodies: bytes) -> Callable[[], web.Response]:
    """Return each body for one look of two pods, the last one again."""
    left = [body for body in bodies for _ in range(2)]
    return lambda: web.Response(body=left.pop(0) if len(left) > 1 else left[0])


@pytest.fixture
async def pods(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(hang, "_APART_SECONDS", 0)
    server.create("ddpjobs", training())
    names = [started(server, index) for index in (0, 1)]
    for index, name in enumerate(names):
        server.objects["pods", NAMESPACE, name]["spec"]["nodeName"] = f"node-{index}"
    return names


async def test_the_rank_is_named_with_a_table(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    launcher.answer = said(hanging())
    server.programs = dict.fromkeys(pods, under(launcher))
    result = await ddp("why", NAME, "--hang")
    assert result.exit_code == 0, result.output
    text, kind, *table = result.stdout.split("\n\n")
    assert " ".join(text.split()).startswith(SENTENCE)
    assert kind == "kind: script (Application); a restart is charged"
    assert [line.split(maxsplit=3) for line in table[0].splitlines()] == [
        ["RANK", "POD", "NODE", "WHERE"],
        ["1", pods[1], "node-1", "at data.py:7 in load"],
        ["0", pods[0], "node-0", "in all_reduce, at train.py:20 in step"],
    ]
    assert launcher.asked == ["/traces"] * 4, "two looks at two pods"
    found = json.loads((await ddp("why", NAME, "--hang", "-o", "json")).stdout)
    assert (found["named_ranks"], found["kind"], found["class"]) == ([1], "script", "Application")
    assert [row["node"] for row in found["ranks"]] == ["node-0", "node-1"]


async def test_stopped_rank_is_not_charged(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    launcher.answer = said(hanging(problem="it is stopped (SIGSTOP)", cause="stopped"))
    server.programs = dict.fromkeys(pods, under(launcher))
    result = await ddp("why", NAME, "--hang")
    assert "kind: stopped (Infrastructure); a restart is not charged at first" in result.stdout


async def test_ranks_that_move_are_not_named(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    done = answer(*(shown(rank, STEP) for rank in range(2)))
    launcher.answer = said(hanging(), done)
    server.programs = dict.fromkeys(pods, under(launcher))
    result = await ddp("why", NAME, "--hang")
    assert result.stdout.startswith("the ranks moved within 0 s, so no rank is named")
    assert "kind:" not in result.stdout
    launcher.answer = said(answer())
    result = await ddp("why", NAME, "--hang")
    assert result.stdout.startswith("no rank shows a wait, so no rank is named")


async def test_only_a_silent_launcher_is_named(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    launcher.answer = said(hanging())

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async def no_python(_: ProgramRun) -> int:
        return 127

    silent = await asyncio.start_server(closes, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    cases: dict[str, FakeProgram] = {
        "rank 1 did not come; 1 rank waits in": in_pod(DDP_STATUS_PORT=str(port), DDP_TOKEN="x"),
        "rank 1 could not be asked, so no rank is named: its image has no python3": no_python,
        "rank 1 could not be asked, so no rank is named: its launcher did not answer: a token": (
            under(launcher, "another")
        ),
    }
    async with silent:
        for begin, program in cases.items():
            server.programs = {pods[0]: under(launcher), pods[1]: program}
            result = await ddp("why", NAME, "--hang")
            assert " ".join(result.stdout.split()).startswith(begin)
            is_named = "did not come" in begin
            assert ("kind: unreachable (Infrastructure)" in result.stdout) == is_named


async def test_hang_needs_all_pods(
    ddp: Ddp, server: FakeApiServer, pods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "_MOST_PODS", 1)
    result = await ddp("why", NAME, "--hang")
    assert result.exit_code == 1
    assert "--hang asks at most 1 pods, the job has 2" in " ".join(result.stderr.split())
    server.delete("pods", NAMESPACE, pods[1])
    result = await ddp("why", NAME, "--hang")
    assert result.exit_code == 1
    said = "1 of 2 pods exist, so ranks wait for the others: run kubectl ddp why digits"
    assert said in " ".join(result.stderr.split())
    assert server.count("GET", "/exec") == 0


async def test_why_suggests_hang_for_a_job_without_progress(
    ddp: Ddp, server: FakeApiServer
) -> None:
    server.create("ddpjobs", training(progress={"step": 7, "updatedAt": "2020-01-01T00:00:00Z"}))
    result = await ddp("why", NAME)
    assert f"kubectl ddp why {NAME} --hang" in " ".join(result.stdout.split())
