"""The engine polls trainers over HTTP on loopback, and checks what they report."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.trainers import reports
from ddp_operator.engine.trainers.requests import HttpTrainers
from ddp_operator.ports import ClusterError, ForbiddenError, Key

from tests.mergepatch import merged
from tests.trainer_server import TrainerServer
from tests.unit.engine.fakes import SETTINGS, FakeCluster
from tests.unit.engine.test_reconciler import READY, job
from tests.unit.fast_loop import loop_now
from tests.waiting import eventually

EVERY_SECONDS = 0.1


class World:
    """An engine with jobs on loopback addresses. `ahead` moves its clock."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.ahead = timedelta()
        self.engine = Engine(
            self.cluster,
            settings=SETTINGS,
            clock=lambda: loop_now() + self.ahead,
            trainers=HttpTrainers(),
            progress_seconds=EVERY_SECONDS,
        )
        self.cluster.tell = self.engine.enqueue
        self.engine.start()

    async def run(self, name: str, server: TrainerServer, **spec: Any) -> None:
        """Bring a job of two pods to Running. Both use the same port, and so share one trainer."""
        manifest = job(statusPort=server.port, **spec)
        now = loop_now().isoformat()
        manifest["metadata"] |= {"name": name, "uid": f"uid-{name}", "creationTimestamp": now}
        self.engine.job_changed(self.cluster.store_job(manifest))
        await self.until(lambda: len(self.pods(name)) == 2)
        self.set_pods(name, {**READY, "podIP": "127.0.0.1"})
        await self.until(lambda: self.status(name).get("phase") == "Running")

    def pods(self, name: str) -> list[str]:
        return [key.name for key in self.cluster.pods if key.name.startswith(f"{name}-")]

    def set_pods(self, name: str, status: dict[str, Any]) -> None:
        for pod in self.pods(name):
            self.cluster.set_pod_status(pod, status)
        self.engine.enqueue(Key("default", name))

    def status(self, name: str) -> dict[str, Any]:
        stored: dict[str, Any] = self.cluster.jobs[Key("default", name)].get("status") or {}
        return stored

    def step(self, name: str) -> int | None:
        step: int | None = (self.status(name).get("progress") or {}).get("step")
        return step

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, describe=lambda: self.cluster.jobs)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.engine.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "progress reports"]


@pytest.fixture
async def server() -> AsyncIterator[TrainerServer]:
    async with TrainerServer() as server:
        yield server


async def test_status_follows_the_reports_of_the_trainer(
    world: World, server: TrainerServer
) -> None:
    server.answer = {"step": 3, "totalSteps": 9, "loss": 0.5, "checkpoint": {"step": 2}}
    await world.run("train", server)
    await world.until(lambda: world.step("train") == 3)
    assert world.status("train")["progress"]["loss"] == 0.5
    assert world.status("train")["checkpoint"] == {"step": 2}
    server.answer = {"step": 4}
    await world.until(lambda: world.step("train") == 4)
    # A value that is not reported again is no longer known; a checkpoint stays.
    assert "loss" not in world.status("train")["progress"]
    assert world.status("train")["checkpoint"] == {"step": 2}


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: web.Response(text="<html>"),
        lambda: web.json_response({"step": "a"}),
        lambda: web.Response(status=503),
    ],
    ids=["no JSON", "no step", "nothing yet"],
)
async def test_invalid_report_is_logged_once_and_affects_no_other_job(
    world: World,
    server: TrainerServer,
    nonsense: Callable[[], web.Response],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ddp_operator.engine.trainers.reports")
    server.answer = nonsense
    async with TrainerServer() as good:
        await world.run("bad", server)
        await world.run("good", good)
        await world.until(lambda: len(server.asked) >= 3)
        await world.until(lambda: world.step("good") == 1)
    assert world.status("bad")["phase"] == "Running"
    assert world.step("bad") is None
    assert sum("default/bad: " in line for line in caplog.messages) == 1


async def test_only_trainers_of_running_jobs_are_polled(
    world: World, server: TrainerServer
) -> None:
    await world.run("other", server)
    async with TrainerServer() as idle:
        await world.run("train", idle)
        await world.until(lambda: "status" in idle.asked)
        world.set_pods("train", {"phase": "Pending", "podIP": "127.0.0.1"})
        # One request may be under way.
        await world.until(lambda: world.status("train")["readyReplicas"] == 0)
        polls, others = len(idle.asked), len(server.asked)
        await world.until(lambda: len(server.asked) >= others + 3)
        assert len(idle.asked) <= polls + 1


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"ownerReferences": [{"uid": "another", "controller": True}]}},
        {"metadata": {"ownerReferences": []}},
        {"status": {"hostIP": "127.0.0.1"}},
        {"spec": {"hostNetwork": True}},
    ],
)
async def test_only_the_jobs_own_pod_at_its_own_address_is_polled(
    world: World, server: TrainerServer, change: dict[str, Any]
) -> None:
    await world.run("other", server)
    async with TrainerServer() as elsewhere:
        await world.run("train", elsewhere)
        await world.until(lambda: world.step("train") == 1)
        for pod in world.pods("train"):
            stored = world.cluster.pods[Key("default", pod)]
            world.cluster.pods[Key("default", pod)] = merged(stored, change)
        # One request may be under way.
        polls, others = len(elsewhere.asked), len(server.asked)
        await world.until(lambda: len(server.asked) >= others + 3)
        assert len(elsewhere.asked) <= polls + 1


async def test_jobs_that_do_not_train_are_not_looked_at_between_events(
    world: World, server: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    may_train = reports._may_train

    def note(job: DDPJob) -> bool:
        looked.append(job.key.name)
        return may_train(job)

    await world.run("train", server)
    waits = job(suspend=True)
    waits["metadata"] |= {"name": "waits", "uid": "uid-waits"}
    world.engine.job_changed(world.cluster.store_job(waits))
    await world.until(lambda: world.status("waits").get("phase") == "Suspended")
    async with TrainerServer() as later:
        await world.run("starts", later)
        world.set_pods("starts", {"phase": "Pending"})
        await world.until(lambda: world.status("starts")["readyReplicas"] == 0)
        polls = len(server.asked)
        await world.until(lambda: len(server.asked) >= polls + 5)  # its last poll is over
        monkeypatch.setattr(reports, "_may_train", note)
        await world.until(lambda: len(looked) >= 5)
        assert set(looked) == {"train"}
        later.answer = {"step": 7}
        world.set_pods("starts", {**READY, "podIP": "127.0.0.1"})
        await world.until(lambda: world.step("starts") == 7)


async def test_unreachable_trainer_changes_nothing(world: World) -> None:
    async with TrainerServer() as server, TrainerServer() as other:
        await world.run("train", server, progressDeadlineSeconds=60)
        await world.run("other", other)
        await world.until(lambda: world.step("train") == 1)
        await server.close()
        world.ahead = timedelta(hours=1)
        polls = len(other.asked)
        await world.until(lambda: len(other.asked) >= polls + 3)
        assert world.status("train")["phase"] == "Running"
        assert world.step("train") == 1


async def test_hung_pods_are_deleted_after_they_dumped_their_stacks(
    world: World, server: TrainerServer
) -> None:
    deleted: list[int] = []
    delete_pods = world.cluster.delete_pods

    async def note(pods: Mapping[Key, str | None], **options: Any) -> Sequence[Key]:
        deleted.append(server.asked.count("dump-stacks"))
        return await delete_pods(pods, **options)

    world.cluster.delete_pods = note  # type: ignore[method-assign]
    await world.run("train", server, progressDeadlineSeconds=1)
    await world.until(lambda: world.pods("train") == ["train-1-0", "train-1-1"])
    assert deleted == [2]
    assert all(header.startswith("DDP-HMAC-SHA256 ") for header in server.tokens)
    assert len(server.tokens) == 4  # the traces before the decision, the stacks after it
    status = world.status("train")
    assert (status["restarts"], status["failures"][0]["reason"]) == (1, "NoProgress")


IN_ALL_REDUCE = {"stack": [["distributed_c10d.py", "9", "all_reduce"]], "waits": True}
LOADING = {"stack": [["data.py", "7", "load"]], "waits": False}


async def test_failure_of_a_hang_names_where_its_ranks_are(
    world: World, server: TrainerServer
) -> None:
    # Both pods share one trainer, which shows the ranks of both.
    ranks = [{"rank": rank, **(LOADING if rank > 1 else IN_ALL_REDUCE)} for rank in range(4)]
    server.traces = 200, json.dumps({"ranks": ranks}).encode()
    await world.run("train", server, progressDeadlineSeconds=1, nprocPerNode=2)
    await world.until(lambda: bool(world.status("train").get("failures")))
    assert server.asked.count("traces") == 2
    [failure] = world.status("train")["failures"]
    assert "; Ranks 0-1 are at distributed_c10d.py:9 in all_reduce; ranks 2-3" in failure["message"]


async def test_hang_of_a_stopped_process_is_not_charged(
    world: World, server: TrainerServer
) -> None:
    ranks = [{"rank": rank, **IN_ALL_REDUCE} for rank in range(3)]
    ranks.append({"rank": 3, "process": 1, "problem": "it is stopped", "cause": "stopped"})
    server.traces = 200, json.dumps({"ranks": ranks}).encode()
    await world.run("train", server, progressDeadlineSeconds=1, nprocPerNode=2)
    await world.until(lambda: bool(world.status("train").get("failures")))
    status = world.status("train")
    [failure] = status["failures"]
    assert (failure["rank"], failure["class"]) == (3, "Infrastructure")
    assert (status.get("restarts", 0), status["disruptions"]) == (0, 1)


async def test_hang_ends_without_answers_of_its_launchers(
    world: World, server: TrainerServer
) -> None:
    server.traces = 200, b'{"ranks": [[]]}'
    await world.run("train", server, progressDeadlineSeconds=1)
    await world.until(lambda: bool(world.status("train").get("failures")))
    [failure] = world.status("train")["failures"]
    assert "spec.progressDeadlineSeconds: 1" in failure["message"]


async def test_hang_with_too_complex_answers_names_no_rank(
    world: World, server: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The job restarts all the same."""
    group = {"name": "0", "description": "", "ranks": [[0, 1, 65_536]] * 8}
    trace = {"groups": [group], "calls": [], "complete": True}
    ranks = [{"rank": rank, "trace": trace} for rank in range(2)]
    server.traces = 200, json.dumps({"ranks": ranks}).encode()
    await world.run("train", server, progressDeadlineSeconds=1)
    await world.until(lambda: bool(world.status("train").get("failures")))
    [failure] = world.status("train")["failures"]
    assert "spec.progressDeadlineSeconds: 1" in failure["message"]
    assert "answers are not read: the waits of its ranks are too complex" in caplog.text


async def test_clock_that_is_set_forward_makes_no_hang(world: World, server: TrainerServer) -> None:
    await world.run("train", server, progressDeadlineSeconds=600)
    await world.until(lambda: world.step("train") == 1)
    world.ahead = timedelta(hours=1)
    polls = len(server.asked)
    await world.until(lambda: len(server.asked) >= polls + 3)
    server.answer = {"step": 2}
    await world.until(lambda: world.step("train") == 2)
    assert world.status("train")["restarts"] == 0


PATTERN = {"logPattern": r"step (?P<step>\d+)"}


async def test_progress_of_a_silent_script_is_read_in_its_log(
    world: World, server: TrainerServer
) -> None:
    server.answer = lambda: web.Response(status=503)
    world.cluster.log = b"step 7\n"
    await world.run("train", server, progress=PATTERN)
    await world.until(lambda: world.step("train") == 7)
    assert set(world.cluster.logs_read) == {("train-0-0", "trainer")}
    world.cluster.log = b"step 7\nstep 8\nevaluating\n"
    await world.until(lambda: world.step("train") == 8)


async def test_log_is_read_only_with_a_pattern_and_without_reports(
    world: World, server: TrainerServer
) -> None:
    world.cluster.log = b"step 7\n"
    await world.run("train", server, progress=PATTERN)
    await world.until(lambda: world.step("train") == 1)
    async with TrainerServer() as silent:
        silent.answer = lambda: web.Response(status=503)
        await world.run("other", silent)
        await world.until(lambda: len(silent.asked) >= 3)
    assert world.cluster.logs_read == []


async def test_log_without_new_steps_is_a_hang(world: World, server: TrainerServer) -> None:
    server.answer = lambda: web.Response(status=503)
    world.cluster.log = b"step 7\n"
    await world.run("train", server, progress=PATTERN, progressDeadlineSeconds=1)
    await world.until(lambda: world.pods("train") == ["train-1-0", "train-1-1"])
    assert world.status("train")["failures"][0]["reason"] == "NoProgress"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (b"hello\n", "none of its last lines match"),
        (b"step 99999999999999999999\n", ": step must be a whole number from 0 to"),
        (ForbiddenError("pods/log is forbidden"), "pods/log is forbidden"),
    ],
)
async def test_log_without_progress_is_logged_once(
    world: World,
    server: TrainerServer,
    log: bytes | ClusterError,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ddp_operator.engine.trainers.reports")
    server.answer = lambda: web.Response(status=503)
    world.cluster.log = log
    await world.run("train", server, progress=PATTERN)
    await world.until(lambda: len(world.cluster.logs_read) >= 3)
    assert world.step("train") is None
    [line] = [line for line in caplog.messages if line.startswith("default/train: ")]
    assert says in line


async def test_hang_before_the_first_step_is_seen_once_the_launcher_answers(
    world: World, server: TrainerServer
) -> None:
    server.answer = lambda: web.Response(status=404)
    spec = {"progressDeadlineSeconds": 60, "restart": {"scope": "Pod"}}
    await world.run("train", server, **spec)
    world.ahead = timedelta(seconds=620)
    await asyncio.sleep(3 * EVERY_SECONDS)
    assert world.status("train").get("attempt", 0) == 0, "no answer is no evidence"
    server.answer = lambda: web.Response(status=503)
    await world.until(lambda: world.status("train").get("attempt") == 1)
    [failure] = world.status("train")["failures"]
    assert failure["reason"] == "NoProgress"
