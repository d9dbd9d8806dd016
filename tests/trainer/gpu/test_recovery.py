"""Ranks that share a GPU die while they train with NCCL; the result is the same to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.gpu.runs import pods, run_to_the_end
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job
from tests.trainer.support.runs import assert_same_run

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return the same run without faults."""
    with pods(tmp_path_factory.mktemp("undisturbed")) as run:
        run_to_the_end(run)
    # Each pod has one rank.
    return replace(run, local_world_size=2)


def assert_same_end(folder: Path, plan: list[FaultAt], undisturbed: Job) -> str:
    """Check that all planned faults happen and the result is the same; return the logs."""
    with pods(folder, *plan) as wounded:
        ended = run_to_the_end(wounded)
    log = "\n".join(pod.log for pod in ended)
    fault_injection.assert_all_happened(plan, folder / "faults", log)
    assert "resuming from checkpoint" not in log
    assert "this process cannot continue" not in log
    assert log.count("restarting it") == len(plan)
    assert_same_run(wounded, undisturbed)
    return log


@pytest.mark.parametrize("victim", [0, 1])
def test_within_a_step(victim: int, tmp_path: Path, undisturbed: Job) -> None:
    plan = [
        FaultAt(rank=victim, point=point, step=5 + 12 * number)
        for number, point in enumerate(fault_injection.IN_A_STEP)
    ]
    assert_same_end(tmp_path, plan, undisturbed)


def test_while_the_group_forms(tmp_path: Path, undisturbed: Job) -> None:
    plan = []
    for number, point in enumerate((*fault_injection.WHILE_FORMING, "joining")):
        lost = FaultAt(rank=number % 2, point="backward", step=5 + 20 * number)
        plan += [lost, FaultAt(rank=number % 2, point=point)]
    assert_same_end(tmp_path, plan, undisturbed)


def test_a_rank_freezes_while_nccl_starts(tmp_path: Path, undisturbed: Job) -> None:
    plan = [
        FaultAt(rank=1, point="backward", step=9),
        FaultAt(rank=1, point="joining", action="SIGSTOP"),
        FaultAt(rank=0, point="gate", step=40, action="SIGSTOP"),
    ]
    assert_same_end(tmp_path, plan, undisturbed)


@pytest.mark.parametrize(
    "options",
    [("--sync-batch-norm",), ("--precision", "fp16"), ("--compile", "inductor")],
    ids=lambda options: options[-1],
)
def test_options_that_need_a_gpu(options: tuple[str, ...], tmp_path: Path) -> None:
    with pods(tmp_path / "undisturbed") as calm:
        run_to_the_end(calm, *options)
    plan = [FaultAt(rank=1, point="backward", step=9), FaultAt(rank=0, point="gate", step=30)]
    with pods(tmp_path / "wounded", *plan) as wounded:
        [pod, *_] = run_to_the_end(wounded, *options)
    fault_injection.assert_all_happened(plan, tmp_path / "wounded/faults", pod.log)
    assert_same_run(replace(wounded, local_world_size=2), replace(calm, local_world_size=2))
