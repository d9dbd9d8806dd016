"""Runs without one of the trainer's protections, whose results must be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.stream_device.device import Sabotage
from tests.trainer.stream_device.forkserver import SABOTAGE_VARIABLE
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same
from tests.trainer.support.preloaded import STREAM


def assert_wrong_without(
    sabotage: Sabotage, folder: Path, *flags: str, state_of: Callable[[Job], Any], expected: Any
) -> None:
    """Check that a loss of one of three ranks leaves other weights, or is noticed too late.

    `state_of`: reads the last state of a run. `expected`: that of a run without faults.
    """
    # The others wait for gradients only.
    lost = FaultAt(rank=2, point="backward", step=9, others_at="gate")
    variables = {SABOTAGE_VARIABLE: sabotage}
    try:
        run = run_with_faults(
            folder, [lost], *flags, ranks=3, forkserver=STREAM, variables=variables
        )
    except AssertionError as error:  # ranks compare their weights after the next group's first step
        assert "after their first step, ranks differ in" in str(error)  # noqa: PT017
        return
    assert "continuing from memory at step 8" not in run.pods[0].log, "it took no incomplete step"
    with pytest.raises(AssertionError):
        assert_same(state_of(run), expected)
