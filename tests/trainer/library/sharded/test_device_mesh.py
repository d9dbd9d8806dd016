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

from tests.trainer.library.runs import Undisturbed, log_of, run_with_faults
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job

RANKS = 3
EPOCHS = 3
STEPS = 15
"""Steps of an epoch: ceil(ceil(1438 / 3) / 32)."""

FLAGS = ("--epochs", str(EPOCHS))


def printed(run: Job) -> list[str]:
    """Return how the ranks of a script on meshes ended, and their results in each epoch."""
    return sorted(set(re.findall(r"ends with \w+|epoch \d+: \[.*", log_of(run))))


def test_a_mesh_works_in_each_new_group(tmp_path: Path, undisturbed: Undisturbed) -> None:
    expected = printed(undisturbed("meshes", *FLAGS, ranks=RANKS))
    assert expected[1:] == [
        f"epoch {epoch}: [0.0, 3.0, 6.0, 10.0, 12.0]" for epoch in range(EPOCHS)
    ]
    plan = [
        FaultAt(rank=1, point="within a step", step=4),
        FaultAt(rank=0, point="within a step", step=8),
        FaultAt(rank=2, point="evaluation", step=2 * STEPS),
        FaultAt(rank=0, point="evaluation", step=EPOCHS * STEPS),
    ]
    actual = run_with_faults(tmp_path, plan, *FLAGS, ranks=RANKS, script="meshes")
    assert log_of(actual).count("restarting it") == len(plan), log_of(actual)
    assert printed(actual) == expected


def test_a_sharded_model_is_refused() -> None:
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
