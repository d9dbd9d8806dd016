"""A script saves its state in memory, also after its group has changed around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer import memory
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.sharded.saved_parts import SavedParts
from ddp_trainer.memory import saving
from ddp_trainer.memory.loading import NoSnapshotError
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import Key, Volume
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.settings.environment import Environment
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.ports import free_port
from tests.trainer.library.sharded.sharding import NEEDS_TORCH
from tests.trainer.memory.fsdp import local
from tests.trainer.memory.pods import listening, variables
from tests.trainer.memory.sameness import same


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


@NEEDS_TORCH
def test_a_sharded_model_continues_from_the_memory_of_the_pod(
    volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All processes are lost; the volume holds two snapshots, and no launcher frees one."""
    caplog.set_level("INFO")
    first, final = train_sharded(steps=4)
    assert first == 1
    files = {path.name for path in (volume / "own/0").iterdir()}
    assert files == {"1-1-0-1-sharded.snapshot", "1-2-0-1-sharded.snapshot"}
    first, again = train_sharded(steps=4)
    assert "loading step 2 from the memory of the pods" in caplog.messages
    assert first == 3
    assert same(again, final)
    (volume / "own/0/1-2-0-1-sharded.snapshot").write_bytes(b"DDPSNAP\n")
    with pytest.raises(NoSnapshotError, match=r"1-2-0-1-sharded.snapshot: it is shorter"):
        train_sharded(steps=4)


@NEEDS_TORCH
@pytest.mark.usefixtures("volume")
def test_a_script_cannot_save_a_sharded_model_itself() -> None:
    model = nn.Linear(1, 1)
    fully_shard(model, mesh=ddp_trainer.device_mesh())
    message = r"remove ddp_trainer\.memory\.save"
    with ddp_trainer.join(model=model), pytest.raises(ConfigurationError, match=message):
        memory.save(1, {})


@NEEDS_TORCH
def test_a_snapshot_of_a_script_is_not_loaded(volume: Path) -> None:
    assert memory.save(2, {"step": 2})
    saving._saver.cache_clear()
    with pytest.raises(NoSnapshotError, match="is no snapshot of a model that join"):
        train_sharded(steps=4)
    assert volume.exists()


def test_repeated_steps_are_not_saved_under_the_same_names(tmp_path: Path) -> None:
    """This rank was lost before it saved steps 2 and 3. Others have, perhaps in another state."""
    env = variables(tmp_path, ranks=2)
    place = Volume.from_env(env)
    assert place is not None
    saved_parts = SavedParts(Saver(place, CurrentAssignment(Environment.from_env(env))))
    with listening(place) as reports:
        saved_parts.pass_over(3, loaded=Key(1, 1))
        found = [(each["step"], each["saved"]) for each in reports.read()]
    assert found == [(3, False)]
    assert not saved_parts.wants(3)
    assert saved_parts.wants(4)


def train_sharded(*, steps: int) -> tuple[int, Any]:
    """Train in a process without a past; return the first step and the state at the end."""
    saving._saver.cache_clear()
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    fully_shard(model, mesh=ddp_trainer.device_mesh())
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.ones(2 * steps, 1)), batch_size=2)
    begun = []
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        for (inputs,) in job.batches(loader):
            begun.append(job.steps_done + 1)
            model(inputs).sum().backward()
            job.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return begun[0], local(state)
