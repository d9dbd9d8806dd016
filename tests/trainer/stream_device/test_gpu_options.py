"""What the trainer refuses on a CPU, run on a device that plays a GPU: it computes the right thing,
and goes on to the bit when a rank dies.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same, job
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import LAST_STEP, run_to_its_end

pytestmark = [pytest.mark.timeout(600)]

SYNC_BATCH_NORM = ("--sync-batch-norm",)
FP16 = ("--precision", "fp16")


def run(folder: Path, *more: str, ranks: int = 2, plan: tuple[FaultAt, ...] = ()) -> Job:
    variables = fault_injection.environment(list(plan), folder.with_name(f"{folder.name}-faults"))
    with job(
        folder,
        nodes=1,
        local_world_size=ranks,
        forkserver=STREAM,
        extra_environment=variables if plan else {},
    ) as started:
        pod = run_to_its_end(started, "--max-restarts", "20", *more)
        assert "resuming from checkpoint" not in pod.log
    return started


def last_state(of: Job) -> dict[str, Any]:
    state: dict[str, Any] = of.state(LAST_STEP[2])
    return state


@pytest.mark.parametrize("options", [SYNC_BATCH_NORM, FP16], ids=lambda options: options[-1])
def test_ranks_that_die_change_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "undisturbed", *options)
    points = ("backward", "gate", "within the optimizer's step", "after the optimizer's step")
    plan = [
        FaultAt(rank=number % 2, point=point, step=5 * number + 5)
        for number, point in enumerate(points * 2)
    ]
    wounded = run(tmp_path / "wounded", *options, plan=tuple(plan))
    [pod] = wounded.pods
    fault_injection.assert_all_happened(plan, tmp_path / "wounded-faults", pod.log)
    assert_same(last_state(wounded), last_state(undisturbed))


def test_sync_batch_norm_sees_the_batches_of_all_ranks_as_one(tmp_path: Path) -> None:
    """One rank with the batches of two ranks together computes the same numbers."""
    short = ("--max-steps", "1", "--workload-option", "dropout=0")
    two = run(tmp_path / "two", *SYNC_BATCH_NORM, *short)
    apart = run(tmp_path / "apart", *short)
    one = run(tmp_path / "one", *short, "--batch-size", "64", ranks=1)
    together, alone, each = (of.state(1) for of in (two, one, apart))
    for name, value in alone["model"].items():
        if "running" in name:
            torch.testing.assert_close(together["model"][name], value, rtol=1e-3, atol=1e-6)
    # After one step, what AdamW remembers is a tenth of the gradient.
    for index, entry in alone["optimizer"]["state"].items():
        gradient = together["optimizer"]["state"][index]["exp_avg"]
        torch.testing.assert_close(gradient, entry["exp_avg"], rtol=1e-3, atol=1e-6)
    statistics = "2.running_mean"
    assert not torch.allclose(each["model"][statistics], alone["model"][statistics], rtol=1e-2)


def test_fp16_scales_its_losses(tmp_path: Path) -> None:
    state = last_state(run(tmp_path / "scaled", *FP16))
    assert state["scaler"]["scale"] > 0
    assert 0 < state["scaler"]["_growth_tracker"] <= LAST_STEP[2]
    # torch's scaler begins at 2^16 and halves whenever gradients overflow; 2000 steps before it
    # would double.
    overflows = math.log2(2**16 / state["scaler"]["scale"])
    assert 0 <= overflows < 10
    steps = {entry["step"].item() for entry in state["optimizer"]["state"].values()}
    assert steps == {LAST_STEP[2] - overflows}, "a step without gradients is none"
