import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from ddp_client.remote import channels

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.cli.test_logs import started
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.kube.fake_channels import FakeProgram, ProgramRun

TOKEN = "0123456789abcdef"


class Launcher:
    """A pod's launcher, which answers requests with the token."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.answer: Callable[[], web.Response] = lambda: web.json_response({"ranks": []})

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403, text="a token is needed")
        self.asked.append(request.path_qs)
        known = request.method == "POST" and request.path in ("/stacks", "/profile", "/trace")
        known |= request.method == "GET" and request.path == "/traces"
        return self.answer() if known else web.Response(status=404)


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher()
    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", made.handle)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


def in_pod(*, folder: Path | None = None, **environment: str) -> FakeProgram:
    """Runs a program as a local process, with a pod's environment and working directory."""

    async def program(run: ProgramRun) -> int:
        assert run.command[0] == "python3"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *run.command[1:]),
            env={"PATH": os.environ["PATH"], **environment},
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            printed, errors = await process.communicate()
        finally:  # the client may have closed
            if process.returncode is None:
                process.kill()
                await process.communicate()
        with contextlib.suppress(ConnectionError):  # the client has closed
            if printed:
                await run.print(printed)
            if errors:
                await run.print(errors, error=True)
        return process.returncode or 0

    return program


def under(launcher: Launcher, token: str = TOKEN) -> FakeProgram:
    return in_pod(DDP_STATUS_PORT=str(launcher.port), DDP_TOKEN=token)


def said(rank: int, *frames: str) -> Json:
    stack = [[f"/app/{frame}.py", "7", frame] for frame in frames]
    return {"rank": rank, "process": 40 + rank, "threads": [stack], "problem": ""}


@pytest.fixture
async def pods(server: FakeApiServer) -> list[str]:
    server.create("ddpjobs", training())
    return [started(server, index) for index in (0, 1)]


async def test_ranks_with_the_same_stack_are_grouped(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    answers = [said(0, "wait", "main"), said(1, "wait", "main")]
    launcher.answer = lambda: web.json_response({"ranks": answers})
    server.programs = dict.fromkeys(pods, under(launcher))
    result = await ddp("stacks", NAME)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "All 2 ranks are at wait.py:7 in wait.",
        "",
        "ranks 0-1",
        "  /app/wait.py:7 in wait",
        "  /app/main.py:7 in main",
    ]
    answers[1] = said(1, "load", "main")
    only = await ddp("stacks", NAME, "--rank", "1", "-o", "json")
    [one] = json.loads(only.stdout)["ranks"]
    assert (one["rank"], one["process"]) == (1, 41)
    assert [frame["function"] for frame in one["threads"][0]] == ["load", "main"]


async def test_modules_of_the_container_s_directory_are_not_imported(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str], tmp_path: Path
) -> None:
    (tmp_path / "http.py").write_text("")
    launcher.answer = lambda: web.json_response({"ranks": [said(0, "wait")]})
    program = in_pod(folder=tmp_path, DDP_STATUS_PORT=str(launcher.port), DDP_TOKEN=TOKEN)
    server.programs = dict.fromkeys(pods, program)
    result = await ddp("stacks", NAME, "--rank", "0")
    assert result.exit_code == 0, result.output
    assert "wait.py:7 in wait" in result.stdout


def refusal(status: int, text: str) -> Callable[[], web.Response]:
    return lambda: web.Response(status=status, text=text)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (refusal(404, "there are GET /status"), "use a newer trainer image"),
        (refusal(409, "somebody else is asking"), "did not answer: somebody else is asking"),
        (refusal(200, "no JSON"), "answer is invalid"),
        (refusal(200, "x" * 3_500_000), "answered with more than"),
    ],
)
async def test_launcher_without_stacks_names_the_reason(
    ddp: Ddp,
    server: FakeApiServer,
    launcher: Launcher,
    pods: list[str],
    answer: Callable[[], web.Response],
    why: str,
) -> None:
    launcher.answer = answer
    server.programs = dict.fromkeys(pods, under(launcher))
    result = await ddp("stacks", NAME)
    assert result.exit_code == 1
    assert "None of 2 ranks answered." in result.stdout
    assert why in " ".join(result.stdout.split())


async def test_pod_without_launcher_names_the_reason(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher, pods: list[str]
) -> None:
    async def no_python(_: ProgramRun) -> int:
        return 127

    cases: dict[str, FakeProgram] = {
        "does not run under the launcher": in_pod(),
        "a token is needed": under(launcher, "another"),
        "has no python3": no_python,
    }
    for why, program in cases.items():
        server.programs = dict.fromkeys(pods, program)
        result = await ddp("stacks", NAME)
        assert result.exit_code == 1
        assert why in " ".join(result.stdout.split())
    server.denied.add(("get", "pods/exec"))
    result = await ddp("stacks", NAME)
    assert "you cannot get resource pods/exec" in " ".join(result.stdout.split())


async def test_ended_pod_gets_no_request(
    ddp: Ddp, server: FakeApiServer, launcher: Launcher
) -> None:
    server.create("ddpjobs", training())
    running, ended = started(server, 0), started(server, 1, ended=True)
    launcher.answer = lambda: web.json_response({"ranks": [said(0, "wait")]})
    server.programs = {running: under(launcher)}
    result = await ddp("stacks", NAME)
    assert result.exit_code == 0
    assert f"rank 1, pod {ended}: its pod has ended" in result.stdout
    assert server.count("GET", "/exec") == 1


async def test_requests_to_pods_are_bounded(
    ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("ddpjobs", training(spec={"replicas": 12}))
    running, most = 0, 0
    pods = [started(server, index) for index in range(12)]

    async def program(run: ProgramRun) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await run.print(json.dumps({"ranks": [said(rank, "wait") for rank in range(12)]}).encode())
        running -= 1
        return 0

    monkeypatch.setattr(channels, "AT_ONCE", 3)
    server.programs = dict.fromkeys(pods, program)
    result = await ddp("stacks", NAME, "--max-pods", "10")
    assert result.stdout.splitlines()[0] == "All 10 ranks are at wait.py:7 in wait."
    assert "2 more pods are left out" in result.stderr
    assert most <= 3
    assert server.count("GET", "/exec") == 10


async def test_job_without_pods(ddp: Ddp, server: FakeApiServer) -> None:
    server.create("ddpjobs", training())
    result = await ddp("stacks", NAME)
    assert result.exit_code == 1
    assert "the job has no pods now" in result.stderr
