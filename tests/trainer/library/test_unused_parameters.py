"""Ranks die while DDP looks for unused parameters; the others keep their processes."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.library.runs import Undisturbed, ends_of, log_of, run_with_faults
from tests.trainer.recovery.test_kill_points import spread
from tests.trainer.support.fault_injection import FaultAt

RANKS = 3
LAST_STEP = 15
SCRIPT, FLAGS = "layers left out", ("--epochs", "1")


def test_ranks_die_while_ddp_looks_for_unused_parameters(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    dead = [FaultAt(rank=rank, point="used parameters") for rank in range(RANKS)]
    plan = spread([*dead, FaultAt(rank=1, point="backward")], begin=2, end=LAST_STEP - 1)
    log = log_of(run_with_faults(tmp_path, plan, *FLAGS, ranks=RANKS, script=SCRIPT))
    assert log.count("restarting it") == len(plan), log
    [end] = ends_of(log_of(undisturbed(SCRIPT, *FLAGS, ranks=RANKS)))
    assert ends_of(log) == {end}
