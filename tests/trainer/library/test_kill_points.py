"""Ranks of a script die at every point; survivors lose no step, and all end with the same state."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.library.runs import resume_after_step_6, run_to_its_end, script_job
from tests.trainer.recovery.test_kill_points import plan_for, spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same
from tests.trainer.support.runs import LAST_STEP, assert_same_run

pytestmark = [pytest.mark.timeout(600)]

Reference = Callable[[int, str], Job]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return an undisturbed run of each kind."""
    known: dict[tuple[int, str], Job] = {}

    def undisturbed(ranks: int, device: str) -> Job:
        if (ranks, device) not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{ranks}")
            with script_job(folder, ranks=ranks, device=device) as peaceful:
                run_to_its_end(peaceful)
            known[ranks, device] = peaceful
        return known[ranks, device]

    return undisturbed


@pytest.mark.parametrize(("device", "ranks"), [("stream", 2), ("stream", 4)])
def test_ranks_of_a_script_die_at_every_point(
    device: str, ranks: int, tmp_path: Path, reference: Reference
) -> None:
    plan, faults = plan_for(ranks), tmp_path / "faults"
    variables = fault_injection.environment(plan, faults)
    with script_job(tmp_path, ranks=ranks, device=device, variables=variables) as wounded:
        pod = run_to_its_end(wounded)
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert "resuming from checkpoint" not in pod.log
        expected = reference(ranks, device)
        assert_same_run(wounded, expected)


@pytest.mark.parametrize("device", ["cpu", "stream"])
def test_ranks_whose_optimizers_take_turns_die_at_every_point(device: str, tmp_path: Path) -> None:
    """A rank may be lost when some or all ranks have taken half of a step."""
    script, faults = "two models", tmp_path / "faults"
    dead = [
        FaultAt(rank=rank, point=point, turn=turn)
        for point in fault_injection.IN_A_TURN
        for rank, turn in ((0, 0), (1, 1), (2, 0), (2, 1))
    ]
    plan = spread(dead, begin=2, end=LAST_STEP[3] - 2)
    variables = fault_injection.environment(plan, faults)
    with script_job(tmp_path / "peace", ranks=3, device=device, script=script) as expected:
        run_to_its_end(expected)
    with script_job(
        tmp_path / "war", ranks=3, device=device, script=script, variables=variables
    ) as wounded:
        pod = run_to_its_end(wounded)
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert "resuming from checkpoint" not in pod.log
        assert_same_run(wounded, expected)


def test_all_ranks_die_and_resume_from_a_checkpoint(tmp_path: Path, reference: Reference) -> None:
    with script_job(tmp_path, ranks=2) as wounded:
        resume_after_step_6(wounded, "--step-delay-seconds=0.1")
        assert_same(wounded.state(LAST_STEP[2]), reference(2, "cpu").state(LAST_STEP[2]))


def test_the_last_save_may_take_longer_than_any_other_and_any_collective(tmp_path: Path) -> None:
    """The script's timeouts are 5 s, and the save of rank 0 takes longer."""
    last = LAST_STEP[2]
    slow = FaultAt(rank=0, point="within a save", step=last + 1, action="wait")
    variables = fault_injection.environment([slow], tmp_path / "faults")
    with script_job(tmp_path, ranks=2, variables=variables) as of:
        pod = run_to_its_end(of)
        fault_injection.assert_all_happened([slow], tmp_path / "faults", pod.log)
        assert "rank 0 has been saving for" in pod.log
        assert re.search(
            rf"waiting for the save of step {last}: \d+% after \d+ s; no time limit but the pod's "
            r"grace period \(after a stop signal: 14 s\)",
            pod.log,
        )
        assert pod.log.count("formed") == 1, pod.log
        assert pod.message["checkpoint"]["step"] == last


def test_told_to_stop_ranks_save_the_same_step(tmp_path: Path, reference: Reference) -> None:
    with script_job(tmp_path, ranks=2, nodes=2) as told:
        pods = told.start_all("--step-delay-seconds=0.1")
        pods[0].wait_for_log("(step 6)")
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait() == 128 + signal.SIGTERM, pod.log
        [saved] = {pod.message["step"] for pod in pods}
        for pod in told.start_all():
            assert pod.wait() == 0, pod.log
            assert f"step-{saved:08d}" in told.pods[2].log
        assert_same(told.state(LAST_STEP[2]), reference(2, "cpu").state(LAST_STEP[2]))
