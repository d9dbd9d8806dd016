"""A rank of a sharded model (FSDP2, gloo), which leaves and enters snapshots.

`python -m tests.trainer.memory.sharded`: ends with 0 if everything is as it should be.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from ddp_trainer.memory.restoration import MismatchError
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.trainer.memory.states import restored, same, snapshot_file


def training(mesh: DeviceMesh, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model whose parts do not divide evenly, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a snapshot needs."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Train with the data of these steps."""
    for step in steps:
        generator = torch.Generator().manual_seed(step * 100 + dist.get_rank())
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def local(state: Any) -> Any:
    """Return the state with this rank's shards."""
    if isinstance(state, dict):
        return {key: local(part) for key, part in state.items()}
    if isinstance(state, Tensor) and hasattr(state, "to_local"):
        return state.to_local()
    return state


def check(mesh: DeviceMesh) -> None:
    """Resume a training, and compare it with one that was not interrupted."""
    model, optimizer = training(mesh, seed=1)
    train(model, optimizer, range(2))
    file = snapshot_file(state_of(model, optimizer))
    train(model, optimizer, range(2, 4))

    resumed, its_optimizer = training(mesh, seed=2)
    state = restored(file, state_of(resumed, its_optimizer))
    its_optimizer.load_state_dict(state["optimizer"])
    train(resumed, its_optimizer, range(2, 4))
    assert same(local(state_of(resumed, its_optimizer)), local(state_of(model, optimizer)))

    with pytest.raises(MismatchError, match="has no DTensor of that kind"):
        restored(file)
    names = ("other", "names")[: mesh.ndim]
    other, _ = training(init_device_mesh("cpu", mesh.shape, mesh_dim_names=names), seed=1)
    with pytest.raises(MismatchError, match=re.escape('state["model"]["0.weight"] is a DTensor')):
        restored(file, {**state, "model": other.state_dict()})


def main() -> None:
    """Check a mesh of all four ranks, and one of two dimensions."""
    dist.init_process_group("gloo")
    check(init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    check(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
