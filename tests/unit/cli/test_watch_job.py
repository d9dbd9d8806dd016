import asyncio
from datetime import UTC, datetime

import pytest
from ddp_client.cli import app
from ddp_client.cli.commands.watching import job as watch_job
from ddp_client.cli.commands.watching.live import drawing
from ddp_client.views.curve import POINTS, Losses, curve

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, condition, stored, training
from tests.unit.cli.screens import screens_of
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_job, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(watch_job, "_PODS_SECONDS", 0.05)


def progress(server: FakeApiServer, step: int, loss: float) -> None:
    now = datetime.now(UTC).isoformat()
    said = {"step": step, "loss": loss, "updatedAt": now, "lastStepTime": now}
    server.update("ddpjobs", "research", NAME, {"status": {"progress": said}})


def succeed(server: FakeApiServer) -> None:
    status = {"phase": "Succeeded", "conditions": [condition("Succeeded", "Completed", ESCAPES)]}
    server.update("ddpjobs", "research", NAME, {"status": status})


async def test_pipe_gets_a_line_for_each_change(ddp: Ddp, server: FakeApiServer) -> None:
    server.create("ddpjobs", training())
    running = asyncio.ensure_future(ddp("status", NAME, "--watch"))
    await eventually(lambda: server.open_watches == 1)
    progress(server, 510, 0.5)
    progress(server, 510, 0.5)  # a change that is not shown
    progress(server, 520, 0.25)
    succeed(server)
    result = await running
    assert result.exit_code == 0, result.output
    lines = [line.split(" ", 1)[1] for line in result.stdout.splitlines()]
    assert [line.partition(" PodsReady")[0] for line in lines] == [
        "Running 2/2 step 500, loss 0.1235",
        "Running 2/2 step 510, loss 0.5",
        "Running 2/2 step 520, loss 0.25",
        "Succeeded 2/2 step 520, loss 0.25",
    ]
    assert server.count("GET", "ddpjobs") == 1  # and one watch, for any number of changes


async def test_terminal_shows_progress_and_losses(
    ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "is_terminal", lambda: True)
    server.create("ddpjobs", training())
    running = asyncio.ensure_future(ddp("status", NAME, "--watch"))
    await eventually(lambda: server.count("GET", "/pods") == 1)
    for step in range(501, 520):
        progress(server, step, 1000 / step)
    await eventually(lambda: server.count("GET", "/pods") >= 2)
    succeed(server)
    result = await running
    assert result.exit_code == 0, result.output
    first, *_, last = screens_of(result.stdout)
    assert "phase       Running" in first
    assert "loss        " not in first
    assert "phase       Succeeded" in last
    assert "█" in last
    assert "▁" in last
    assert last.replace("\n", "").isprintable()  # no control characters of the job's text
    assert max(map(len, last.splitlines())) <= 110


async def test_terminal_shows_changes_of_the_queue(
    ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "is_terminal", lambda: True)
    monkeypatch.setattr(watch_job, "_QUEUE_SECONDS", 0.05)
    queued = stored("Pending", "Queued", spec={"scheduling": {"queueName": "team"}})
    job = server.create("ddpjobs", queued)
    metadata = {"name": f"{NAME}-{job['metadata']['uid'][:6]}-0", "namespace": "research"}
    running = asyncio.ensure_future(ddp("status", NAME, "--watch"))
    await eventually(lambda: server.count("GET", "/workloads/") > 2)
    server.create("workloads", {"metadata": metadata, "spec": {"active": False}})
    before = server.count("GET", "/workloads/")
    await eventually(lambda: server.count("GET", "/workloads/") > before + 3)
    succeed(server)
    screens = screens_of((await running).stdout)
    assert "Kueue " not in screens[0]
    assert any("spec.active is false" in screen for screen in screens)
    assert "Kueue " not in screens[-1]


def test_screen_is_drawn_over_the_previous_one(capsys: pytest.CaptureFixture[str]) -> None:
    with drawing() as draw:
        draw(["a", "b"])
        draw(["c"])
    output = capsys.readouterr().out
    assert screens_of(output) == ["a\nb", "c", "c\n"]
    assert output.count("\x1b[1A\x1b[2K") == 1  # one line up, and erased


@pytest.mark.parametrize("terminal", [False, True])
async def test_missing_job(ddp: Ddp, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(app, "is_terminal", lambda: terminal)
    result = await ddp("status", "nobody", "--watch")
    assert result.exit_code == 1
    assert "there is no job nobody" in result.stderr


@pytest.mark.parametrize("terminal", [False, True])
async def test_watch_ends_when_the_job_is_deleted(
    ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(app, "is_terminal", lambda: terminal)
    server.create("ddpjobs", training())
    running = asyncio.ensure_future(ddp("status", NAME, "--watch"))
    await eventually(lambda: server.open_watches == 1)
    server.delete("ddpjobs", "research", NAME)
    assert (await running).exit_code == 0


async def test_watch_of_objects_refers_to_kubectl(ddp: Ddp) -> None:
    result = await ddp("status", NAME, "--watch", "-o", "yaml")
    assert result.exit_code == 2
    assert "kubectl get ddp -w" in result.stderr


def test_a_curve() -> None:
    assert curve([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert curve([3.0, 3.0]) == "▁▁"
    assert len(curve(range(1000))) == POINTS
    assert curve(range(1000)) == "".join(sorted(curve(range(1000))))


def test_losses_of_repeated_steps_are_shown_once() -> None:
    losses = Losses()
    assert losses.line() == ""
    for step, loss in ((1, 8.0), (2, float("nan")), (3, None), (4, 2.0), (5, 1.0), (4, 4.0)):
        losses.add(step, loss)
    assert losses.line() == "8 █▁ 4"


def test_losses_are_bounded() -> None:
    losses = Losses()
    for step in range(100_000):
        losses.add(step, float(step))
    assert len(losses._points) <= 100 * POINTS
    assert losses.line().startswith("0 ▁")
    assert losses.line().endswith("█ 1e+05")
