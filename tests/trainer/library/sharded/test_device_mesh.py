"""A DeviceMesh outlives the job's groups, and a model that is sharded over one is refused."""

from __future__ import annotations

import re
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt

RANKS = 3
EPOCHS = 3
STEPS = 15
"""Steps of an epoch: ceil(ceil(1438 / 3) / 32)."""

pytestmark = [pytest.mark.timeout(600)]


def told_by(folder: Path, plan: list[FaultAt]) -> list[str]:
    """Return how the ranks of a script on meshes ended, and their results in each epoch."""
    variables = fault_injection.environment(plan, folder / "faults")
    with script_job(folder, ranks=RANKS, script="meshes", variables=variables) as job:
        pod = run_to_its_end(job, "--epochs", str(EPOCHS))
    assert pod.log.count("restarting it") == len(plan), pod.log
    fault_injection.assert_all_happened(plan, folder / "faults", pod.log)
    return sorted(set(re.findall(r"ends with \w+|epoch \d+: \[.*", pod.log)))


def test_a_mesh_is_of_use_in_each_group_that_forms(tmp_path: Path) -> None:
    undisturbed, wounded = tmp_path / "undisturbed", tmp_path / "wounded"
    undisturbed.mkdir()
    wounded.mkdir()
    end, *epochs = told_by(undisturbed, [])
    assert epochs == [f"epoch {epoch}: [0.0, 3.0, 6.0, 10.0, 12.0]" for epoch in range(EPOCHS)]
    plan = [
        FaultAt(rank=1, point="within a step", step=4),
        FaultAt(rank=0, point="within a step", step=8),
        FaultAt(rank=2, point="evaluation", step=2 * STEPS),
        FaultAt(rank=0, point="evaluation", step=EPOCHS * STEPS),
    ]
    assert told_by(wounded, plan) == [end, *epochs]


def test_a_sharded_model_is_refused(no_launcher: None) -> None:
    del no_launcher
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    model = nn.Linear(2, 2)
    with ddp_trainer.join(model=model) as job:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        for use in (
            lambda: job.wrap(model),
            lambda: next(job.batches(DataLoader(TensorDataset(torch.ones(2))))),
        ):
            with pytest.raises(ConfigurationError, match=r"^weight is a DTensor"):
                use()
