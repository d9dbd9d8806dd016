"""Runs of the bundled trainer in which ranks fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, job
from tests.trainer.support.preloaded import CPU
from tests.trainer.support.runs import run_to_its_end


def run_with_faults(
    folder: Path,
    plan: Sequence[FaultAt],
    *flags: str,
    ranks: int,
    forkserver: str = CPU,
    variables: Mapping[str, str] | None = None,
) -> Job:
    """Run one pod to its end; its ranks fail as planned and continue without a checkpoint."""
    folder.mkdir(exist_ok=True)
    faults = folder / "faults"
    environment = {**fault_injection.environment([*plan], faults), **(variables or {})}
    with job(
        folder,
        nodes=1,
        local_world_size=ranks,
        forkserver=forkserver,
        extra_environment=environment,
    ) as run:
        log = run_to_its_end(run, *flags).log
    fault_injection.assert_all_happened(plan, faults, log)
    assert "resuming from checkpoint" not in log
    return run
