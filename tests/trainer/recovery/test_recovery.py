"""A disturbed run ends with the same state as an undisturbed one, to the bit.

The compared checkpoints hold weights, optimizer, schedule and position. The traces hold the samples
of each rank and step, and so also what was done twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.trainer.support.mounts import with_own_mounts
from tests.trainer.support.pods import Job, Pod, assert_same, is_alive, job, until

EPOCHS = 2
SAMPLES = 1438
LAST_STEP = {2: 46, 3: 30}  # 2 epochs of ceil(ceil(1438 / ranks) / 32) steps


def flags(of: Job, *more: str) -> list[str]:
    return [
        *("--epochs", str(EPOCHS), "--checkpoint-every-steps", "7", "--keep-checkpoints", "2"),
        *("--trace-samples", str(of.traces), "--step-delay-seconds", "0.02"),
        *more,
    ]


def without_checkpoints(of: Job, *more: str) -> list[str]:
    """Return flags with which only the last step is saved; before it, all state is in memory."""
    return flags(of, "--checkpoint-every-steps", "1000", *more)


def undisturbed_run(folder: Path, **settings: int) -> Iterator[Job]:
    with job(folder, **settings) as reference:
        for pod in reference.start_all(*flags(reference)):
            assert pod.wait() == 0, pod.log
        yield reference


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield from undisturbed_run(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def undisturbed_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield from undisturbed_run(tmp_path_factory.mktemp("undisturbed-three"), nodes=3)


def assert_same_run(actual: Job, expected: Job) -> None:
    ranks = expected.nodes * expected.local_world_size
    assert_same(actual.state(LAST_STEP[ranks]), expected.state(LAST_STEP[ranks]))
    for rank in range(ranks):
        assert actual.steps_of(rank) == expected.steps_of(rank)


def assert_nothing_repeated(of: Job, *, failures: int) -> None:
    """Only steps in progress at a loss were begun twice, and none was left out."""
    for rank in range(of.nodes * of.local_world_size):
        begun = of.begun_steps_of(rank)
        assert all(later - earlier in (0, 1) for earlier, later in pairwise(begun)), begun
        assert len(begun) - len(set(begun)) <= failures, begun


def _path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def history(of: Job) -> list[tuple[int, float]]:
    """Return step, and loss or accuracy, of the lines of metrics.jsonl that have one."""
    lines = map(json.loads, (of.checkpoints / "metrics.jsonl").read_text().splitlines())
    return [
        (line["step"], line.get("loss", line.get("accuracy")))
        for line in lines
        if line["kind"] in ("training", "evaluation")
    ]


def assert_time_is_counted(of: Job, leader: Pod) -> None:
    """Check the time of a training that was started twice in rank 0's termination message."""
    lines = map(json.loads, (of.checkpoints / "metrics.jsonl").read_text().splitlines())
    start = [line for line in lines if line["kind"] == "start"][-1]
    formed = datetime.fromisoformat(start["formedTime"])
    first, again = (datetime.fromisoformat(each["time"]) for each in start["firstSteps"])
    last = datetime.fromisoformat(leader.message["lastStepTime"])
    counted = leader.message["trainedSeconds"]
    inexact = 0.01
    least, most = last - again, (last - first) - (again - formed)
    assert least.total_seconds() - inexact <= counted <= most.total_seconds() + inexact


def random_step(ranks: int = 2, *, steps_left: int = 12) -> int:
    step = random.randrange(3, LAST_STEP[ranks] + 1 - steps_left)
    print(f"the failure comes at step {step}")  # pytest shows it when the test fails
    return step


SLOW = ("--step-delay-seconds", "0.1")
"""For runs that a test stops or disturbs twice: ranks share stop signals four times a second."""
PATIENT = {"DDP_LEAVE_SECONDS": "600"}
"""Leave time of pods with a stop signal while others continue: longer than a test."""


def test_killed_pods_resume_from_a_checkpoint(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as killed:
        pods = killed.start_all(*flags(killed, "--max-restarts", "0"))
        killed.wait_for_step(random_step())
        os.kill(pods[1].rank_pids()[0], signal.SIGKILL)
        assert pods[1].wait() == 128 + signal.SIGKILL
        assert "SIGKILL" in pods[1].message["error"]
        assert pods[1].message["rank"] == 1
        pods[0].kill()
        pods = killed.start_all(*flags(killed))
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert_time_is_counted(killed, pods[0])
        assert_same_run(killed, undisturbed)
        # Steps that were taken twice are reported once.
        assert history(killed) == history(undisturbed)
        assert [step for step, _ in history(killed)] == [10, 20, 23, 30, 40, 46, 46]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_pod_is_replaced(victim: int, tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as damaged:
        pods = damaged.start_all(*without_checkpoints(damaged))
        damaged.wait_for_step(random_step())
        orphans = pods[victim].rank_pids()
        pods[victim].kill()
        until(lambda: not any(is_alive(pid) for pid in orphans), "the ranks to die with the pod")
        pods[1 - victim].wait_for_log("the group broke")
        replacement = damaged.start(victim, *without_checkpoints(damaged))
        replacement.wait_for_log("continuing from memory")
        assert replacement.wait() == 0, replacement.log
        pods[1 - victim].assert_keeps_its_ranks()
        assert_same_run(damaged, undisturbed)
        assert_nothing_repeated(damaged, failures=1)
        for pod in damaged.pods:
            assert "resuming from checkpoint" not in pod.log


@pytest.mark.parametrize(
    "victims",
    [[0], [1, 2], *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in ([2], [0, 1]))],
    ids=str,
)
def test_launchers_restart_killed_ranks_of_three(
    victims: list[int], tmp_path: Path, undisturbed_three: Job
) -> None:
    with job(tmp_path, nodes=3) as damaged:
        pods = damaged.start_all(*without_checkpoints(damaged))
        damaged.wait_for_step(random_step(3))
        for victim in victims:
            os.kill(pods[victim].rank_pids()[0], signal.SIGKILL)
        for victim in victims:
            pods[victim].wait_for_log("restarting it, 1 of at most 3 restarts")
            pods[victim].wait_for_log("continuing from memory")
        for rank in {0, 1, 2} - set(victims):
            pods[rank].assert_keeps_its_ranks()
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert_same_run(damaged, undisturbed_three)
        assert_nothing_repeated(damaged, failures=len(victims))


def test_stopped_ranks_save_the_same_step_and_resume(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, extra_environment=PATIENT) as stopped:
        pods = stopped.start_all(*flags(stopped, *SLOW, "--stop-within-seconds", "1200"))
        stopped.wait_for_step(random_step(steps_left=20))
        for pod in [*pods, *pods]:  # a second signal changes nothing
            pod.stop()
        for pod in pods:
            assert pod.wait() == 143, pod.log
        step = pods[0].message["step"]
        assert pods[1].message["step"] == step
        assert step < LAST_STEP[2]
        assert stopped.state(step)["position"]["step"] == step
        assert f"step-{step:08d}" in pods[0].message["checkpoint"]["path"]
        assert max(stopped.steps_of(0)) == max(stopped.steps_of(1)) == step
        for pod in stopped.start_all(*flags(stopped)):
            assert pod.wait() == 0, pod.log
        assert_same_run(stopped, undisturbed)
        assert_nothing_repeated(stopped, failures=0)


def test_a_job_resumes_with_other_ranks_and_the_rest_of_the_samples(tmp_path: Path) -> None:
    with job(tmp_path) as resized:
        pods = resized.start_all(*flags(resized, *SLOW))
        resized.wait_for_step(random.randrange(3, LAST_STEP[2] // EPOCHS - 5))
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait() == 143, pod.log
        resized.nodes = 1
        [alone] = resized.start_all(*flags(resized))
        assert alone.wait() == 0, alone.log
        assert alone.message["step"] == alone.message["totalSteps"] > LAST_STEP[2]
        [last] = resized.state(alone.message["step"])["optimizer"]["param_groups"]
        assert 0 < last["lr"] < 0.01 * last["initial_lr"], "the last step has a cosine's last rate"
        trained = Counter(
            sample
            for rank in range(2)
            for samples in resized.steps_of(rank).values()
            for sample in samples
        )
        assert trained == dict.fromkeys(range(SAMPLES), EPOCHS)


def test_a_full_disk_is_reported_and_no_reason_to_stop_training(tmp_path: Path) -> None:
    """A real disk of 32 kB, mounted for this pod only."""
    mount = 'mount -t tmpfs -o size=32k none "$DDP_CHECKPOINT_DIR" && exec "$@"'
    with job(
        tmp_path, nodes=1, command_prefix=[*with_own_mounts(), "sh", "-c", mount, "sh"]
    ) as full:
        full.checkpoints.mkdir()
        [pod] = full.start_all(*flags(full, "--max-restarts", "0"))
        assert pod.wait() == 1
        assert "saving the checkpoint of step 7 failed ([Errno 28] No space left" in pod.log
        assert pod.message["step"] == pod.message["totalSteps"]
        assert "No space left on device" in pod.message["error"]


def test_a_pod_waits_for_the_successor_of_a_stopped_one(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as evicted:
        pods = evicted.start_all(*flags(evicted, *SLOW))
        evicted.wait_for_step(random_step(steps_left=20))
        survivor = pods[0].rank_pids()
        pods[1].stop()
        assert pods[1].wait() == 143, pods[1].log
        pods[0].wait_for_log("another pod is stopping")
        assert pods[0].rank_pids() == survivor
        successor = evicted.start(1, *flags(evicted))
        assert successor.wait() == 0, successor.log
        assert pods[0].wait() == 0, pods[0].log
        assert_same_run(evicted, undisturbed)
        assert_nothing_repeated(evicted, failures=0)


SLOW_TO_EVALUATE = """
import time
from dataclasses import replace
from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Samples

def load():
    workload = digits.load()
    inputs, targets = workload.test.batch(list(range(len(workload.test))) * 1000)
    samples = Samples(inputs=inputs, targets=targets)
    def score(outputs, targets):
        print("evaluating", flush=True)
        time.sleep(0.5)
        return workload.score(outputs, targets)
    return replace(workload, test=samples, score=score)
"""
"""An evaluation of six minutes for two ranks."""


def test_a_stopped_pod_does_not_evaluate_to_the_end(tmp_path: Path, undisturbed: Job) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_EVALUATE)
    variables = {**PATIENT, "PYTHONPATH": _path_with(tmp_path)}
    with job(tmp_path, extra_environment=variables) as stopped:
        patient = ("--workload=slow:load", "--stop-within-seconds=1200")
        pods = stopped.start_all(*without_checkpoints(stopped, *patient))
        for pod in pods:
            pod.wait_for_log("evaluating")
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait() == 143, pod.log
            assert pod.message["step"] == LAST_STEP[2] / EPOCHS
            assert "accuracy" not in pod.message
        for pod in stopped.start_all(*flags(stopped)):
            assert pod.wait() == 0, pod.log
        assert_same_run(stopped, undisturbed)
        assert_nothing_repeated(stopped, failures=0)
        assert [step for step, _ in history(stopped)].count(LAST_STEP[2] // EPOCHS) == 1


def test_a_pod_stopped_while_it_waits_reports_what_was_saved(tmp_path: Path) -> None:
    with job(tmp_path) as stopped:
        pods = stopped.start_all(*flags(stopped, *SLOW))
        stopped.wait_for_step(3)
        pods[1].stop()
        assert pods[1].wait() == 143, pods[1].log
        pods[0].wait_for_log("another pod is stopping")
        pods[0].stop()
        assert pods[0].wait() == 143, pods[0].log
        message = pods[0].message
        assert message["step"] == pods[1].message["step"]
        assert f"step-{message['step']:08d}" in message["checkpoint"]["path"]
        assert "error" not in message
        assert message["exitCode"] == 143


def test_rank_0_stopped_while_it_waits_saves_its_memory(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as stopped:
        pods = stopped.start_all(*without_checkpoints(stopped))
        stopped.wait_for_step(random_step())
        pods[1].kill()
        pods[0].wait_for_log("the group broke")
        pods[0].stop()
        assert pods[0].wait() == 143, pods[0].log
        step = pods[0].message["step"]
        assert step >= 2
        assert stopped.state(step)["position"]["step"] == step
        for pod in stopped.start_all(*flags(stopped)):
            assert pod.wait() == 0, pod.log
        assert_same_run(stopped, undisturbed)


def test_two_ranks_in_one_pod(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, nodes=1, local_world_size=2) as single:
        [pod] = single.start_all(*flags(single, *SLOW, "--max-restarts", "1"))
        single.wait_for_step(random_step())
        before = pod.rank_pids()
        os.kill(before[1], signal.SIGKILL)
        pod.wait_for_log("continuing from memory")
        after = pod.rank_pids()
        assert after[0] == before[0]
        assert after[1] != before[1]
        os.kill(after[1], signal.SIGKILL)
        # This exceeds the restarts. Rank 0 notices the loss at once, but rank 1 is reported.
        assert pod.wait() == 128 + signal.SIGKILL
        assert "SIGKILL" in pod.message["error"]
        assert pod.message["rank"] == 1
        [pod] = single.start_all(*flags(single))
        assert pod.wait() == 0, pod.log
        assert pod.message["rank"] == 0
        assert_same_run(single, undisturbed)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_frozen_rank_is_named_killed_and_replaced(
    victim: int, tmp_path: Path, undisturbed: Job
) -> None:
    with job(tmp_path) as hanging:
        pods = hanging.start_all(*without_checkpoints(hanging, "--heartbeat-timeout-seconds", "3"))
        hanging.wait_for_step(random_step())
        [pid] = pods[victim].rank_pids()
        os.kill(pid, signal.SIGSTOP)
        pods[victim].wait_for_log(f"rank {victim} has been frozen for 3 s: killing it")
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert_same_run(hanging, undisturbed)
        assert_nothing_repeated(hanging, failures=1)


KEEPS_PYTHONS_LOCK = """
import ctypes, itertools, os, time
from dataclasses import replace
from pathlib import Path
from ddp_trainer.workloads import digits

def compute(seconds):
    # One call, during which no other thread runs. It takes this long on any machine.
    any(map((time.monotonic() + seconds).__le__, iter(time.monotonic, None)))

def wait(seconds):
    ctypes.PyDLL(None).sleep(int(seconds))

def load(*, how: str, seconds: float, once: Path):
    workload = digits.load()
    calls = itertools.count(1)
    def loss(outputs, targets):
        if os.environ["RANK"] == "1" and next(calls) == 9 and not once.exists():
            once.touch()
            {"compute": compute, "wait": wait}[how](seconds)
        return workload.loss(outputs, targets)
    return replace(workload, loss=loss)
"""


def keeping_the_lock(of: Job, how: str, seconds: float) -> list[str]:
    options = {"how": how, "seconds": seconds, "once": of.folder / "once"}
    (of.folder / "keeps.py").write_text(KEEPS_PYTHONS_LOCK)
    return without_checkpoints(
        of,
        "--workload=keeps:load",
        *(f"--workload-option={name}={value}" for name, value in options.items()),
        "--heartbeat-timeout-seconds=2",
    )


def test_a_rank_that_is_too_busy_for_a_pulse_is_left_alone(
    tmp_path: Path, undisturbed: Job
) -> None:
    """Its peers may form a group without it and wait for it; it keeps its process and state."""
    with job(tmp_path, extra_environment={"PYTHONPATH": _path_with(tmp_path)}) as busy:
        pods = busy.start_all(*keeping_the_lock(busy, "compute", 6))
        pods[1].wait_for_log("rank 1 is too busy for a pulse: waiting for up to 24 s")
        for pod in pods:
            pod.assert_keeps_its_ranks()
            assert "killing it" not in pod.log
        assert_same_run(busy, undisturbed)
        assert_nothing_repeated(busy, failures=1)


def test_a_rank_that_holds_its_lock_forever_is_killed(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, extra_environment={"PYTHONPATH": _path_with(tmp_path)}) as locked:
        pods = locked.start_all(*keeping_the_lock(locked, "wait", 10_000))
        pods[1].wait_for_log("rank 1 has been frozen for 2 s: killing it")
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert "too busy" not in pods[1].log
        assert_same_run(locked, undisturbed)
        assert_nothing_repeated(locked, failures=1)


@pytest.mark.parametrize(
    "victim", [0, *(pytest.param(rank, marks=pytest.mark.nightly) for rank in (1, 2))]
)
def test_a_frozen_pod_is_named_and_replaced(
    victim: int, tmp_path: Path, undisturbed_three: Job
) -> None:
    """No process in the pod can kill the frozen rank, so its peers must leave it behind."""
    with job(tmp_path, nodes=3) as hanging:
        settings = without_checkpoints(hanging, "--heartbeat-timeout-seconds", "3")
        pods = hanging.start_all(*settings)
        hanging.wait_for_step(random_step(3))
        rank = pods[victim].rank_pids()
        for pid in (pods[victim].process.pid, *rank):
            os.kill(pid, signal.SIGSTOP)
        others = [pod for pod in pods if pod is not pods[victim]]
        # One of them notices it, leaves the group, and the other one notices that.
        named = f"rank {victim} has been frozen or unreachable for 3 s"
        until(lambda: any(named in pod.log for pod in others), "the frozen rank to be named")
        for pod in others:
            pod.wait_for_log("the group broke")
        pods[victim].kill()
        hanging.start(victim, *settings)
        for pod in [*others, hanging.pods[-1]]:
            assert pod.wait() == 0, pod.log
        assert_same_run(hanging, undisturbed_three)
        assert_nothing_repeated(hanging, failures=1)
