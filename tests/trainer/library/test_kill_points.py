"""Ranks of a script die at every point; survivors lose no step, and all end with the same state."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.trainer.library.runs import (
    Undisturbed,
    ends_of,
    log_of,
    resume_after_step_6,
    run_with_faults,
    script_job,
)
from tests.trainer.recovery.test_kill_points import plan_for, spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same
from tests.trainer.support.runs import LAST_STEP, assert_same_run


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_ranks_of_a_script_die_at_every_point(
    ranks: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    actual = run_with_faults(tmp_path, plan_for(ranks), ranks=ranks, device="stream")
    assert_same_run(actual, undisturbed(ranks=ranks))


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.nightly), "stream"])
def test_ranks_whose_optimizers_take_turns_die_at_every_point(
    device: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A rank may be lost when some or all ranks have taken half of a step."""
    script = "two models"
    dead = [
        FaultAt(rank=rank, point=point, turn=turn)
        for point in fault_injection.IN_A_TURN
        for rank, turn in ((0, 0), (1, 1), (2, 0), (2, 1))
    ]
    plan = spread(dead, begin=2, end=LAST_STEP[3] - 2)
    actual = run_with_faults(tmp_path, plan, ranks=3, device=device, script=script)
    assert_same_run(actual, undisturbed(script, ranks=3))


AVERAGE = "an average"
"""A script with parts that change after each step, which belong to the step."""


def test_all_ranks_die_and_resume_from_a_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    expected = undisturbed(AVERAGE, ranks=2)
    with script_job(tmp_path, ranks=2, script=AVERAGE) as killed:
        second = resume_after_step_6(killed, "--step-delay-seconds=0.1")
        assert_same(killed.state(LAST_STEP[2]), expected.state(LAST_STEP[2]))
        assert ends_of(second.log) == ends_of(log_of(expected))


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_changes_after_a_step_reach_the_successor_of_a_rank(
    rank: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """It is lost after the other rank has taken the step too, and before both compare states."""
    expected = undisturbed(AVERAGE, ranks=2)
    plan = [
        FaultAt(rank=rank, point="after the optimizer's step", step=10),
        FaultAt(rank=rank, point="gate", step=20),
        FaultAt(rank=rank, point="vote", step=30),
    ]
    actual = run_with_faults(tmp_path, plan, ranks=2, script=AVERAGE)
    assert_same_run(actual, expected)
    assert ends_of(log_of(actual)) == ends_of(log_of(expected))


def test_the_last_save_may_take_longer_than_all_timeouts(tmp_path: Path) -> None:
    """The script's timeouts are 5 s, and the save of rank 0 takes longer."""
    last = LAST_STEP[2]
    slow = FaultAt(rank=0, point="within a save", step=last + 1, action="wait")
    run = run_with_faults(tmp_path, [slow], ranks=2)
    log = log_of(run)
    assert "rank 0 has been saving for" in log
    assert re.search(
        rf"waiting for the save of step {last}: \d+% after \d+ s; no time limit but the pod's "
        r"grace period \(after a stop signal: 14 s\)",
        log,
    )
    assert log.count("formed") == 1, log
    assert run.pods[0].message["checkpoint"]["step"] == last


def test_stopped_ranks_of_a_script_save_the_same_step(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with script_job(tmp_path, ranks=2, nodes=2) as stopped:
        pods = stopped.start_all("--step-delay-seconds=0.1")
        pods[0].wait_for_log("(step 6)")
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait() == 128 + signal.SIGTERM, pod.log
        [saved] = {pod.message["step"] for pod in pods}
        for pod in stopped.start_all():
            assert pod.wait() == 0, pod.log
            assert f"step-{saved:08d}" in stopped.pods[2].log
        assert_same(stopped.state(LAST_STEP[2]), undisturbed(ranks=2).state(LAST_STEP[2]))
