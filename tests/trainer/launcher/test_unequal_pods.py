"""Pods of 1 and of 2 ranks in one group, with the variables that the operator sets in a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS
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
LAUNCHER = ["-m", "ddp_trainer.launch"]


def run_pods(tmp_path: Path, command: list[str]) -> list[str]:
    """Run both pods to their end; their output."""
    job = fresh_job(
        replicas=2,
        nprocPerNode=2,
        overrides=[{"indexes": ["0"], "nprocPerNode": 1}],
        masterPort=free_port(),
    )
    pods = []
    for index in range(2):
        told = environment(job, Identity(index=index, attempt=0), token="")
        told |= {"MASTER_ADDR": "localhost", "PET_MASTER_ADDR": "localhost"}
        told |= {"DDP_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "OMP_NUM_THREADS": "1"}
        del told["DDP_STATUS_PORT"]
        told["DDP_TERMINATION_LOG"] = str(tmp_path / f"termination-{index}")
        pods.append(
            subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **told},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [pod.communicate(timeout=DEADLINE_SECONDS)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0, 0], "\n".join(outputs)
    return outputs


@pytest.mark.parametrize(
    "launcher",
    [[*LAUNCHER, "--", sys.executable], ["-m", "torch.distributed.run"]],
    ids=["launcher", "torchrun"],
)
def test_each_rank_knows_its_place(tmp_path: Path, launcher: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    first, _ = run_pods(tmp_path, [*launcher, str(script)])
    assert "ranks: 0 0 1 0; 1 0 2 1; 2 1 2 1" in first


def test_the_bundled_trainer_trains_on_them(tmp_path: Path) -> None:
    flags = ["--workload", "synthetic", "--max-steps", "3", "--log-every-steps", "1"]
    first, _ = run_pods(tmp_path, [*LAUNCHER, *flags])
    assert "group of 3 ranks formed" in first
    assert "step 3/3" in first
