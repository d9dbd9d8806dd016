"""Without its protections, the trainer computes wrong results on an asynchronous device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.stream_device.device import Sabotage
from tests.trainer.stream_device.forkserver import SABOTAGE_VARIABLE
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same, job
from tests.trainer.support.preloaded import STREAM
from tests.trainer.support.runs import LAST_STEP, Undisturbed, run_to_its_end

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize("sabotage", list(Sabotage))
def test_what_is_taken_away_is_missed(
    sabotage: Sabotage, tmp_path: Path, reference: Undisturbed
) -> None:
    """A device on which nothing can go wrong would prove nothing."""
    # The others wait for nothing but gradients.
    death = FaultAt(rank=2, point="backward", step=9, others_at="gate")
    variables = {
        **fault_injection.environment([death], tmp_path / "faults"),
        SABOTAGE_VARIABLE: sabotage,
    }
    with job(
        tmp_path, nodes=1, local_world_size=3, forkserver=STREAM, extra_environment=variables
    ) as wounded:
        pod = run_to_its_end(wounded)
        assert "continuing from memory at step 8" not in pod.log, (
            "it took the step that nobody could"
        )
        with pytest.raises(AssertionError):
            assert_same(wounded.state(LAST_STEP[3]), reference(3, STREAM).state(LAST_STEP[3]))
