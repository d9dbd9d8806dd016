"""Options that the trainer refuses on a CPU, on a device that imitates a GPU.

The results are right, and they are the same to the bit if a rank dies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import LAST_STEP

SYNC_BATCH_NORM = ("--sync-batch-norm",)
FP16 = ("--precision", "fp16")


def run(
    folder: Path, *options: str, ranks: int = 2, plan: Sequence[FaultAt] = ()
) -> dict[str, Any]:
    """Run to the end; return the last state."""
    trained = run_with_faults(folder, plan, *options, ranks=ranks, forkserver=STREAM)
    state: dict[str, Any] = trained.last_state
    return state


@pytest.mark.parametrize("options", [SYNC_BATCH_NORM, FP16], ids=lambda options: options[-1])
def test_ranks_that_die_change_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    expected = run(tmp_path / "undisturbed", *options)
    points = ("backward", "gate", "within the optimizer's step", "after the optimizer's step")
    plan = [
        FaultAt(rank=number % 2, point=point, step=10 * number + 5)
        for number, point in enumerate(points)
    ]
    actual = run(tmp_path / "faulty", *options, plan=plan)
    assert_same(actual, expected)
    if options == FP16:
        assert_losses_were_scaled(expected)


def assert_losses_were_scaled(state: dict[str, Any]) -> None:
    """Check the counts of torch's scaler.

    Its scale begins at 2^16 and is halved whenever gradients overflow. It would double after 2000
    steps without an overflow.
    """
    assert state["scaler"]["scale"] > 0
    assert 0 < state["scaler"]["_growth_tracker"] <= LAST_STEP[2]
    overflows = math.log2(2**16 / state["scaler"]["scale"])
    assert 0 <= overflows < 10
    steps = {entry["step"].item() for entry in state["optimizer"]["state"].values()}
    assert steps == {LAST_STEP[2] - overflows}, "a step with an overflow is not counted"


def test_sync_batch_norm_sees_the_batches_of_all_ranks_as_one(tmp_path: Path) -> None:
    """One rank with the batches of two ranks together computes the same numbers."""
    short = ("--max-steps", "1", "--workload-option", "dropout=0")
    together = run(tmp_path / "together", *SYNC_BATCH_NORM, *short)
    each = run(tmp_path / "each", *short)
    alone = run(tmp_path / "alone", *short, "--batch-size", "64", ranks=1)
    for name, value in alone["model"].items():
        if "running" in name:
            torch.testing.assert_close(together["model"][name], value, rtol=1e-3, atol=1e-6)
    # After one step, AdamW's average is a tenth of the gradient.
    for index, entry in alone["optimizer"]["state"].items():
        gradient = together["optimizer"]["state"][index]["exp_avg"]
        torch.testing.assert_close(gradient, entry["exp_avg"], rtol=1e-3, atol=1e-6)
    statistics = "2.running_mean"
    assert not torch.allclose(each["model"][statistics], alone["model"][statistics], rtol=1e-2)
