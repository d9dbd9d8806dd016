"""Whatever happens to a run, it ends where an undisturbed run ends: to the bit.

The checkpoints compared hold weights, optimizer, schedule, position and every rank's random
numbers; the traces hold which rank trained on which samples at which step.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.pods import Job, assert_same, is_alive, job, until

EPOCHS = 2
LAST_STEP = 46  # 2 epochs of ceil(ceil(1438 / 2) / 32) = 23 steps


def flags(of: Job, *more: str) -> list[str]:
    return [
        *("--epochs", str(EPOCHS), "--checkpoint-every-steps", "7", "--keep-checkpoints", "2"),
        *("--trace-samples", str(of.traces), "--step-delay-seconds", "0.02"),
        *more,
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with job(tmp_path_factory.mktemp("undisturbed")) as reference:
        for pod in reference.start_all(*flags(reference)):
            assert pod.wait() == 0, pod.log
        yield reference


def assert_same_run(actual: Job, expected: Job) -> None:
    assert_same(actual.state(LAST_STEP), expected.state(LAST_STEP))
    for rank in range(2):
        assert actual.steps_of(rank) == expected.steps_of(rank)


def random_step() -> int:
    step = random.randrange(3, LAST_STEP - 5)
    print(f"the failure comes at step {step}")  # pytest shows it when the test fails
    return step


def test_every_sample_is_trained_on_once_an_epoch(undisturbed: Job) -> None:
    first_epoch = [
        sample
        for rank in range(2)
        for step, samples in undisturbed.steps_of(rank).items()
        if step <= LAST_STEP // EPOCHS
        for sample in samples
    ]
    assert sorted(first_epoch) == list(range(1438))


def test_all_pods_killed(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as killed:
        pods = killed.start_all(*flags(killed))
        killed.wait_for_step(random_step())
        os.kill(pods[1].rank_pids()[0], signal.SIGKILL)
        assert pods[1].wait() == 128 + signal.SIGKILL
        assert "SIGKILL" in pods[1].message["error"]
        assert pods[1].message["rank"] == 1
        pods[0].kill()
        for pod in killed.start_all(*flags(killed)):
            assert pod.wait() == 0, pod.log
        assert_same_run(killed, undisturbed)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_pod_killed_and_replaced(victim: int, tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as wounded:
        pods = wounded.start_all(*flags(wounded))
        wounded.wait_for_step(random_step())
        orphans = pods[victim].rank_pids()
        pods[victim].kill()
        until(lambda: not any(is_alive(pid) for pid in orphans), "the ranks to die with the pod")
        pods[1 - victim].wait_for_log("the group broke")
        replacement = wounded.start(victim, *flags(wounded))
        assert replacement.wait() == 0, replacement.log
        assert pods[1 - victim].wait() == 0, pods[1 - victim].log
        assert_same_run(wounded, undisturbed)


def test_told_to_stop_all_ranks_save_the_same_step(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path) as stopped:
        pods = stopped.start_all(*flags(stopped))
        stopped.wait_for_step(random_step())
        for pod in [*pods, *pods]:  # being told twice changes nothing
            pod.stop()
        for pod in pods:
            assert pod.wait() == 143, pod.log
        step = pods[0].message["step"]
        assert pods[1].message["step"] == step
        assert step < LAST_STEP
        assert stopped.state(step)["position"]["step"] == step
        assert f"step-{step:08d}" in pods[0].message["checkpoint"]
        assert max(stopped.steps_of(0)) == max(stopped.steps_of(1)) == step
        for pod in stopped.start_all(*flags(stopped)):
            assert pod.wait() == 0, pod.log
        assert_same_run(stopped, undisturbed)


def test_one_pod_told_to_stop_the_other_waits_for_its_successor(
    tmp_path: Path, undisturbed: Job
) -> None:
    with job(tmp_path) as evicted:
        pods = evicted.start_all(*flags(evicted))
        evicted.wait_for_step(random_step())
        pods[1].stop()
        assert pods[1].wait() == 143, pods[1].log
        pods[0].wait_for_log("another pod was told to stop")
        successor = evicted.start(1, *flags(evicted))
        assert successor.wait() == 0, successor.log
        assert pods[0].wait() == 0, pods[0].log
        assert_same_run(evicted, undisturbed)


def test_a_pod_told_to_stop_while_it_waits_still_knows_what_was_saved(tmp_path: Path) -> None:
    with job(tmp_path) as stopped:
        pods = stopped.start_all(*flags(stopped))
        stopped.wait_for_step(3)
        pods[1].stop()
        assert pods[1].wait() == 143, pods[1].log
        pods[0].wait_for_log("another pod was told to stop")
        pods[0].stop()
        assert pods[0].wait() == 143, pods[0].log
        message = pods[0].message
        assert message["step"] == pods[1].message["step"]
        assert f"step-{message['step']:08d}" in message["checkpoint"]
        assert "error" not in message
        assert message["exitCode"] == 143


def test_two_ranks_in_one_pod(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, nodes=1, local_world_size=2) as single:
        [pod] = single.start_all(*flags(single))
        single.wait_for_step(random_step())
        pid = pod.rank_pids()[1]
        os.kill(pid, signal.SIGKILL)
        # Its neighbour notices at once too, but only the killed rank is to blame.
        assert pod.wait() == 128 + signal.SIGKILL
        assert "SIGKILL" in pod.message["error"]
        [pod] = single.start_all(*flags(single))
        assert pod.wait() == 0, pod.log
        assert pod.message["rank"] == 0
        assert_same_run(single, undisturbed)


def test_a_hanging_peer_counts_as_lost(tmp_path: Path) -> None:
    with job(tmp_path) as hanging:
        settings = flags(hanging, "--group-timeout-seconds", "8", "--max-reforms", "0")
        pods = hanging.start_all(*settings)
        hanging.wait_for_step(3)
        [pid] = pods[1].rank_pids()
        os.kill(pid, signal.SIGSTOP)
        assert pods[0].wait() == 75, pods[0].log
        assert "imed out" in pods[0].message["error"] or "timeout" in pods[0].message["error"]
        assert pods[0].message["step"] >= 3
