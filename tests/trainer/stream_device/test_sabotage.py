"""Without its protections, the trainer computes wrong results on an asynchronous device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.stream_device.device import Sabotage
from tests.trainer.stream_device.sabotaged import assert_wrong_without
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
    assert_wrong_without(
        sabotage,
        tmp_path,
        state_of=lambda run: run.state(LAST_STEP[3]),
        expected=reference(3, STREAM).state(LAST_STEP[3]),
    )
