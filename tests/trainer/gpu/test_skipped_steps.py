"""Steps with a loss that is NaN are skipped on a GPU, and change nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.trainer.library.checks.skipping import BAD, BY_HAND, SHARDED
from tests.trainer.library.runs import script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt

pytestmark = [pytest.mark.timeout(600)]
BAD_STEPS = [(1, 0), (4, 1), (8, 1), (9, 1), (15, 0)]
PLAN = [
    FaultAt(rank=1, point="after backward", step=4),
    FaultAt(rank=0, point="after the optimizer's step", step=8),
]


def ends_of(folder: Path, **variables: str) -> tuple[list[str], str]:
    """Return how two ranks end, and their logs."""
    folder.mkdir()
    variables |= {BAD: json.dumps(BAD_STEPS), "DDP_BACKEND": "nccl"}
    with script_job(
        folder, ranks=2, nodes=2, device="cuda", script="bad batches", variables=variables
    ) as job:
        pods = job.start_all("--max-restarts", "100", "--epochs", "1")
        assert [pod.wait() for pod in pods] == [0, 0], pods[0].log
        log = "\n".join(pod.log for pod in pods)
    return sorted(re.findall(r"rank \d ends with \w+", log)), log


@pytest.mark.parametrize("more", [{}, {SHARDED: "1"}], ids=["replicas", "sharded"])
def test_the_result_is_that_without_the_steps(tmp_path: Path, more: dict[str, str]) -> None:
    """Ranks of replicas also die in them."""
    plan = [] if more else PLAN
    war = fault_injection.environment(plan, tmp_path / "faults") if plan else {}
    ends, log = ends_of(tmp_path / "skipped", **more, **war)
    fault_injection.assert_all_happened(plan, tmp_path / "faults", log)
    for step, rank in BAD_STEPS:
        assert f"step {step} is skipped: the loss of rank {rank} is nan" in log
    assert ends == ends_of(tmp_path / "by hand", **more, **{BY_HAND: "1"})[0]
    assert len(ends) == 2
