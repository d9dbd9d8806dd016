"""What a script changes after a step belongs to the step, in checkpoints and in other ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.library.runs import resume_after_step_6, run_to_its_end, script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same
from tests.trainer.support.runs import LAST_STEP, assert_same_run

pytestmark = [pytest.mark.timeout(600)]

SCRIPT = "an average"
LAST = LAST_STEP[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    with script_job(tmp_path_factory.mktemp("undisturbed"), ranks=2, script=SCRIPT) as peaceful:
        run_to_its_end(peaceful)
    return peaceful


def ends_of(log: str) -> set[str]:
    """What the ranks had at their ends, in a digest."""
    return set(re.findall(r"ends with (\w+)", log))


def test_a_checkpoint_has_it(tmp_path: Path, undisturbed: Job) -> None:
    slow = FaultAt(rank=0, point="vote", step=8, action="wait")  # it saves step 6 meanwhile
    variables = fault_injection.environment([slow], tmp_path / "faults")
    with script_job(tmp_path, ranks=2, script=SCRIPT, variables=variables) as wounded:
        second = resume_after_step_6(wounded)
        assert_same(wounded.state(LAST), undisturbed.state(LAST))
        assert ends_of(second.log) == ends_of(undisturbed.pods[0].log)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_takes_the_place_of_a_lost_one_has_it(
    rank: int, tmp_path: Path, undisturbed: Job
) -> None:
    """It dies when the other one has taken the step too, and then wants to compare notes."""
    plan = [
        FaultAt(rank=rank, point="after the optimizer's step", step=10),
        FaultAt(rank=rank, point="gate", step=20),
        FaultAt(rank=rank, point="vote", step=30),
    ]
    variables = fault_injection.environment(plan, tmp_path / "faults")
    with script_job(tmp_path, ranks=2, script=SCRIPT, variables=variables) as wounded:
        pod = run_to_its_end(wounded)
        fault_injection.assert_all_happened(plan, tmp_path / "faults", pod.log)
        assert "resuming from checkpoint" not in pod.log
        assert_same_run(wounded, undisturbed)
        assert ends_of(pod.log) == ends_of(undisturbed.pods[0].log)
