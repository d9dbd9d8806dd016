"""A training that FSDP2 shards over all ranks; its module imports no test tools, for speed."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tests.trainer.gpu.sharing import share_gpu

DEVICE_VARIABLE = "TEST_DEVICE"
DEVICE = os.environ.get(DEVICE_VARIABLE, "cpu")


def form_group() -> None:
    """Form the process group; a GPU is shared by all its ranks."""
    if DEVICE == "cuda":
        share_gpu(os.environ["RANK"])
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(0)  # a mesh would take the local rank's
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")


def training(mesh: DeviceMesh, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with parts that do not divide evenly, and its optimizer."""
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
        inputs = torch.randn(4, 3, generator=generator).to(DEVICE)
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def local(state: Any) -> Any:
    """Return the state with this rank's shards."""
    if isinstance(state, dict):
        return {key: local(part) for key, part in state.items()}
    if isinstance(state, Tensor) and hasattr(state, "to_local"):
        return state.to_local()
    return state
