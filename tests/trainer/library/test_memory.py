"""A script saves its state in memory, also after its group has changed around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer import memory
from ddp_trainer.memory import saving
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.ports import free_port
from tests.trainer.memory.pods import variables


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let this process be the only rank of a job with a volume in memory."""
    env = {
        **variables(tmp_path / "volume"),
        "MASTER_PORT": str(free_port()),
        "DDP_STATUS_FILE": str(tmp_path / "status.json"),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    saving._saver.cache_clear()
    yield tmp_path / "volume"
    saving._saver.cache_clear()


def test_snapshots_are_of_the_generation_of_the_group(tmp_path: Path, volume: Path) -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
    change = Assignment(
        job_uid="7d1f", attempt=0, generation=2, node_rank=0, nodes=1, master_addr="localhost"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        AssignmentFile(tmp_path / "status.json").write(change)  # it applies after a step
        for (inputs,) in job.batches(loader):
            net(inputs).sum().backward()
            if job.step():
                memory.save(job.steps_done, model.state_dict())
    files = {path.name for path in (volume / "own/0").iterdir()}
    assert files == {"1-1-0-1-sharded.snapshot", "2-2-0-1-sharded.snapshot"}
