"""Ranks of a model that FSDP2 shards on a GPU die; the others keep their processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.trainer.library.runs import script_job
from tests.trainer.library.sharded.sharding import COPIES, SHARD_SIZE
from tests.trainer.library.sharded.test_fsdp import EPOCHS, LAST_STEP, printed
from tests.trainer.recovery.test_kill_points import spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt

pytestmark = [pytest.mark.timeout(600)]
POINTS = (
    *("vote", "within a step", "gate", "before the optimizer's step"),
    *("within the optimizer's step", "after the optimizer's step", "a snapshot's copy"),
)


def run(
    folder: Path, ranks: int, plan: Sequence[FaultAt] = (), *, shard_size: int | None = None
) -> tuple[set[str], str]:
    """Return all losses and the states of all ranks at the end, and the logs.

    `shard_size`: ranks of a replica of the model.
    """
    folder.mkdir(exist_ok=True)
    variables = {
        "DDP_BACKEND": "nccl",
        COPIES: "1",
        **({SHARD_SIZE: str(shard_size)} if shard_size is not None else {}),
        **fault_injection.environment(list(plan), folder / "faults"),
    }
    with script_job(
        folder, ranks=ranks, nodes=ranks, device="cuda", script="shards", variables=variables
    ) as job:
        pods = job.start_all("--max-restarts", "1000", "--epochs", str(EPOCHS))
        codes = [pod.wait() for pod in pods]
        log = "\n".join(pod.log for pod in pods)
    assert codes == [0] * ranks, log
    fault_injection.assert_all_happened(plan, folder / "faults", log)
    return printed(log), log


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_die_at_every_point_of_a_step(ranks: int, tmp_path: Path) -> None:
    undisturbed, log = run(tmp_path / "undisturbed", ranks)
    assert len(undisturbed) == ranks * (LAST_STEP[ranks] + 1), log
    dead = [FaultAt(rank=number % ranks, point=point) for number, point in enumerate(POINTS)]
    plan = [*spread(dead[:4], begin=2, end=14), *spread(dead[4:], begin=17, end=28)]
    results, log = run(tmp_path / "wounded", ranks, plan)
    print(log)
    assert results == undisturbed
    assert log.count("restarting it") == len(plan), log


def test_ranks_of_replicas_die(tmp_path: Path) -> None:
    """HSDP with 2 x 2 ranks; the copy of rank 1's part is with its replica, rank 3."""
    undisturbed, log = run(tmp_path / "undisturbed", 4, shard_size=2)
    assert len(undisturbed) == 4 * (LAST_STEP[4] + 1), log
    plan = [
        FaultAt(rank=0, point="within a step", step=3),
        FaultAt(rank=1, point="gate", step=7),
        FaultAt(rank=2, point="a snapshot's copy", step=14),
        FaultAt(rank=3, point="within the optimizer's step", step=18),
    ]
    results, log = run(tmp_path / "wounded", 4, plan, shard_size=2)
    assert results == undisturbed
    assert log.count("restarting it") == len(plan), log
