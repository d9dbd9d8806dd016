"""Devices and links that hang or fail while heartbeats continue: no rank waits forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.support.device_errors import DeviceError
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import Undisturbed, assert_same_run

STEP = 9


def log_with(*plan: FaultAt, folder: Path, reference: Undisturbed) -> str:
    """Run three ranks with a fault; they end like an undisturbed run. Return the log."""
    run = run_with_faults(folder, plan, "--group-timeout-seconds", "5", ranks=3, forkserver=STREAM)
    assert_same_run(run, reference(3, STREAM))
    return run.pods[0].log


@pytest.mark.parametrize("rank", [0, 2])
def test_a_link_that_hangs_ends_with_the_groups_timeout(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """All ranks keep their processes, and any of them may time out first."""
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="stall")
    log = log_with(fault, folder=tmp_path, reference=reference)
    assert "took more than 5 s: a collective or the device hangs" in log
    assert f"the group broke at step {STEP - 1}" in log
    assert "restarting it" not in log


@pytest.mark.parametrize("rank", [0, 2])
def test_a_device_that_hangs_ends_its_process(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="hang")
    log = log_with(fault, folder=tmp_path, reference=reference)
    # Not even the abort of the group ends then.
    assert "this process cannot continue: its device did not return when leaving the group" in log
    assert log.count("restarting it") == 1
    assert "continuing from memory" in log


@pytest.mark.parametrize("rank", [0, 2])
def test_a_device_that_fails_ends_its_process(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """The CUDA context is lost, so the rank cannot form the group again."""
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="fail")
    log = log_with(fault, folder=tmp_path, reference=reference)
    message = f"{DeviceError.__name__}: CUDA error: device-side assert triggered: restarting it"
    assert log.count(message) == log.count("restarting it") == 1
    assert f"[rank {rank}] the group broke" not in log


@pytest.mark.parametrize("action", ["kill", "SIGSTOP"])
def test_a_rank_lost_while_devices_join_costs_no_other_state(
    action: str, tmp_path: Path, reference: Undisturbed
) -> None:
    """NCCL waits there until its sockets are cut."""
    lost = FaultAt(rank=1, point="backward", step=STEP)
    joining = FaultAt(rank=1, point="joining", action=action)
    log = log_with(lost, joining, folder=tmp_path, reference=reference)
    assert "this process cannot continue" not in log
    assert log.count("restarting it") == 2


def test_a_rank_that_is_busy_for_long_is_not_taken_for_stuck(
    tmp_path: Path, reference: Undisturbed
) -> None:
    """The script is busy for longer than a device may take to leave its group."""
    busy = FaultAt(rank=0, point="after the optimizer's step", step=STEP, action="be busy")
    log = log_with(busy, FaultAt(rank=1, point="vote"), folder=tmp_path, reference=reference)
    assert "this process cannot continue" not in log
    assert log.count("restarting it") == 1
