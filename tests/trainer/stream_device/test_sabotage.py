"""Without its protections, the trainer computes wrong results on an asynchronous device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.stream_device.device import Sabotage
from tests.trainer.stream_device.forkserver import SABOTAGE_VARIABLE
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import LAST_STEP, Undisturbed


@pytest.mark.parametrize(
    "sabotage",
    [
        Sabotage.NO_GATE,
        pytest.param(Sabotage.EVENT_ALONE, marks=pytest.mark.nightly),
        pytest.param(Sabotage.ABORT_FIRST, marks=pytest.mark.nightly),
    ],
)
def test_without_a_protection_results_are_wrong(
    sabotage: Sabotage, tmp_path: Path, reference: Undisturbed
) -> None:
    """A device on which nothing can go wrong would prove nothing."""
    # The others wait for gradients only.
    lost = FaultAt(rank=2, point="backward", step=9, others_at="gate")
    variables = {SABOTAGE_VARIABLE: sabotage}
    try:
        run = run_with_faults(tmp_path, [lost], ranks=3, forkserver=STREAM, variables=variables)
    except AssertionError as error:  # ranks compare their weights after the next group's first step
        assert "after their first step, ranks differ in" in str(error)  # noqa: PT017
        return
    assert "continuing from memory at step 8" not in run.pods[0].log, "it took an incomplete step"
    with pytest.raises(AssertionError):
        assert_same(run.state(LAST_STEP[3]), reference(3, STREAM).state(LAST_STEP[3]))
