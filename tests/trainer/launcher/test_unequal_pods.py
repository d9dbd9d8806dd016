"""Pods of 1 and of 2 ranks in one group, with the operator's variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS, job
from tests.unit.job.builders import fresh_job

SCRIPT = """
import os
from torch import distributed as dist

dist.init_process_group("gloo")
mine = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
all_of_them = [None] * dist.get_world_size()
dist.all_gather_object(all_of_them, " ".join(mine))
if dist.get_rank() == 0:
    print("ranks:", "; ".join(all_of_them))
dist.destroy_process_group()
"""
PLACES = "ranks: 0 0 1 0; 1 0 2 1; 2 1 2 1"


def environments(folder: Path) -> list[dict[str, str]]:
    """Return the variables of both pods."""
    manifest = fresh_job(
        replicas=2,
        nprocPerNode=2,
        overrides=[{"indexes": ["0"], "nprocPerNode": 1}],
        masterPort=free_port(),
    )
    found = []
    for index in range(2):
        variables = environment(manifest, Identity(index=index, attempt=0), token="")
        variables |= {"MASTER_ADDR": "localhost", "PET_MASTER_ADDR": "localhost"}
        variables |= {"DDP_CHECKPOINT_DIR": str(folder / "checkpoints"), "OMP_NUM_THREADS": "1"}
        del variables["DDP_STATUS_PORT"]
        found.append(variables)
    return found


def run_pods(folder: Path, *arguments: str) -> str:
    """Run both pods to their end; return the log of the first."""
    with job(folder) as unequal:
        for node_rank, variables in enumerate(environments(folder)):
            unequal.extra_environment = variables
            unequal.start(node_rank, *arguments)
        for pod in unequal.pods:
            pod.assert_keeps_its_ranks()
        return unequal.pods[0].log


def test_each_rank_knows_its_place(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert PLACES in run_pods(tmp_path, "--", sys.executable, str(script))


@pytest.mark.nightly
def test_each_rank_of_torchrun_knows_its_place(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    first, second = (
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", str(script)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for variables in environments(tmp_path)
    )
    with first, second:
        try:
            assert PLACES in first.communicate(timeout=DEADLINE_SECONDS)[0]
            assert [pod.wait(DEADLINE_SECONDS) for pod in (first, second)] == [0, 0]
        finally:
            first.kill()
            second.kill()


def test_the_bundled_trainer_trains_on_them(tmp_path: Path) -> None:
    flags = ("--workload", "synthetic", "--max-steps", "3", "--log-every-steps", "1")
    log = run_pods(tmp_path, *flags)
    assert "group of 3 ranks formed" in log
    assert "step 3/3" in log
