"""Ranks die while DDP looks for unused parameters; the others keep their processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.recovery.test_kill_points import spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt

RANKS = 3
LAST_STEP = 15

pytestmark = [pytest.mark.timeout(600)]


def run(folder: Path, plan: list[FaultAt]) -> set[str]:
    """Return the states at the end."""
    folder.mkdir()
    variables = fault_injection.environment(plan, folder / "faults")
    with script_job(folder, ranks=RANKS, script="layers left out", variables=variables) as job:
        pod = run_to_its_end(job, "--epochs", "1")
    fault_injection.assert_all_happened(plan, folder / "faults", pod.log)
    assert pod.log.count("restarting it") == len(plan), pod.log
    return set(re.findall(r"ends with \w+", pod.log))


def test_ranks_die_while_ddp_looks_for_unused_parameters(tmp_path: Path) -> None:
    dead = [FaultAt(rank=rank, point="used parameters") for rank in range(RANKS)]
    plan = spread([*dead, FaultAt(rank=1, point="backward")], begin=2, end=LAST_STEP - 1)
    [end] = run(tmp_path / "undisturbed", [])
    assert run(tmp_path / "disturbed", plan) == {end}
