"""A new rank receives the answers of ranks that asked each other outside the loop.

The time-out of groups is never reached.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Pod

RANKS, STEPS = 3, 15
FLAGS = ("--epochs", "3", "--heartbeat-timeout-seconds", "4", "--group-timeout-seconds", "1000")


def told(pod: Pod) -> set[str]:
    """Return the printed lines of the script."""
    return set(re.findall(r"(?:epoch \d+: \[|ends with ).*", pod.log))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with script_job(tmp_path_factory.mktemp("undisturbed"), ranks=RANKS, script="asking") as of:
        return told(run_to_its_end(of, *FLAGS))


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_new_rank_gets_the_answers_of_those_before_it(
    rank: int, tmp_path: Path, undisturbed: set[str]
) -> None:
    plan = [
        FaultAt(rank=rank, point="after a step", step=5),
        FaultAt(rank=rank, point="after an epoch", step=STEPS),
        FaultAt(rank=rank, point="after a step", step=STEPS + 5),
        FaultAt(rank=rank, point="after an epoch", step=3 * STEPS),
    ]
    faults = tmp_path / "faults"
    variables = fault_injection.environment(plan, faults)
    with script_job(tmp_path, ranks=RANKS, script="asking", variables=variables) as wounded:
        pod = run_to_its_end(wounded, *FLAGS)
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert "resuming from checkpoint" not in pod.log
        assert told(pod) == undisturbed
        assert len(undisturbed) == 3 + 1
