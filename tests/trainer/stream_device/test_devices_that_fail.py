"""Devices and links that hang or fail while heartbeats continue: no rank waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.support import fault_injection
from tests.trainer.support.device_errors import DeviceError
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Pod, job
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import Undisturbed, assert_same_run, run_to_its_end

pytestmark = [pytest.mark.timeout(600)]

STEP = 9


def run_with(*plan: FaultAt, folder: Path, reference: Undisturbed) -> Pod:
    """Run three ranks with a fault; they end like an undisturbed run."""
    faults = folder / "faults"
    variables = fault_injection.environment(list(plan), faults)
    with job(
        folder, nodes=1, local_world_size=3, forkserver=STREAM, extra_environment=variables
    ) as wounded:
        pod = run_to_its_end(wounded, "--group-timeout-seconds", "5")
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert_same_run(wounded, reference(3, STREAM))
    return pod


@pytest.mark.parametrize("rank", [0, 2])
def test_a_link_that_hangs_ends_with_the_groups_timeout(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """All ranks keep their processes, whichever times out first."""
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="stall")
    pod = run_with(fault, folder=tmp_path, reference=reference)
    assert "took more than 5 s: a collective or the device hangs" in pod.log
    assert f"the group broke at step {STEP - 1}" in pod.log
    assert "restarting it" not in pod.log
    assert "resuming from checkpoint" not in pod.log


@pytest.mark.parametrize("rank", [0, 2])
def test_a_device_that_hangs_ends_its_process(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="hang")
    pod = run_with(fault, folder=tmp_path, reference=reference)
    # Not even the abort of the group ends then.
    assert "this process cannot continue: its device did not return when leaving the group" in (
        pod.log
    )
    assert pod.log.count("restarting it") == 1
    assert "continuing from memory" in pod.log
    assert "resuming from checkpoint" not in pod.log


@pytest.mark.parametrize("rank", [0, 2])
def test_a_device_that_fails_ends_its_process(
    rank: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """The CUDA context is lost, so the rank cannot form the group again."""
    fault = FaultAt(rank=rank, point="backward", step=STEP, action="fail")
    pod = run_with(fault, folder=tmp_path, reference=reference)
    said = f"{DeviceError.__name__}: CUDA error: device-side assert triggered"
    sentence = f"{said}: restarting it"
    assert pod.log.count(sentence) == pod.log.count("restarting it") == 1
    assert f"[rank {rank}] the group broke" not in pod.log
    assert "resuming from checkpoint" not in pod.log


@pytest.mark.parametrize("action", ["kill", "SIGSTOP"])
def test_a_rank_lost_while_devices_are_joined_costs_nobody_else_their_state(
    action: str, tmp_path: Path, reference: Undisturbed
) -> None:
    """NCCL waits there until its sockets are cut."""
    lost = FaultAt(rank=1, point="joining", action=action)
    plan = FaultAt(rank=1, point="backward", step=STEP), lost
    pod = run_with(*plan, folder=tmp_path, reference=reference)
    assert "this process cannot continue" not in pod.log
    assert pod.log.count("restarting it") == 2
    assert "resuming from checkpoint" not in pod.log


def test_whoever_is_busy_for_long_is_not_taken_for_stuck(
    tmp_path: Path, reference: Undisturbed
) -> None:
    """The script is busy for longer than the device may take, which recovers at once."""
    busy = FaultAt(rank=0, point="after the optimizer's step", step=STEP, action="be busy")
    pod = run_with(busy, FaultAt(rank=1, point="vote"), folder=tmp_path, reference=reference)
    assert "this process cannot continue" not in pod.log
    assert pod.log.count("restarting it") == 1
    assert "resuming from checkpoint" not in pod.log
