"""A script with a model that fully_shard() shards over all ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer.library.sharded.support import OLDEST
from ddp_trainer.system.torch_release import release
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.trainer.library.script import digest, digits, parsed
from tests.trainer.support import fault_injection
from tests.trainer.support.norm import network

COPIES = "TEST_SHARD_COPIES"
SHARD_SIZE = "TEST_SHARD_SIZE"
ONLY_SHARDS = "TEST_ONLY_SHARDS"
"""Set: the model has no buffers, which differ between ranks."""
CLIP = "TEST_CLIP_GRAD_NORM"
PAUSES = "TEST_PAUSES"
"""Ranks wait at each of two points until a file of its name is in this folder."""
BEFORE_JOIN = "before join"
PAUSE_STEP = 8
AFTER_STEP = "after a step"
NEEDS_TORCH = pytest.mark.skipif(
    release() < OLDEST,
    reason="sharded models need a newer torch",
)


class Own:
    """This rank's own part of what is sharded."""

    def __init__(self, *parts: nn.Module | torch.optim.Optimizer) -> None:
        self._parts = parts

    def state_dict(self) -> object:
        return [self._local(part.state_dict()) for part in self._parts]

    def _local(self, state: object) -> object:
        if isinstance(state, dict):
            return {key: self._local(value) for key, value in state.items()}
        return state.to_local() if isinstance(state, DTensor) else state


def _pause(point: str) -> None:
    while PAUSES in os.environ and not Path(os.environ[PAUSES], point).exists():
        time.sleep(0.01)


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    torch.manual_seed(0)
    size = os.environ.get(SHARD_SIZE)
    mesh = ddp_trainer.device_mesh(int(size) if size else None)
    model = network(dropout=0.25)
    if ONLY_SHARDS in os.environ:
        layers = [layer for layer in model.children() if not isinstance(layer, nn.BatchNorm1d)]
        model = nn.Sequential(*layers)
    clip = float(os.environ.get(CLIP, "1")) or None
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    _pause(BEFORE_JOIN)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
        checkpoint_dir="",
        shard_copies=int(os.environ.get(COPIES, "0")),
        group_timeout_seconds=20,
        max_reforms=100,
    ) as job:
        loader = digits(job.rank)
        for _ in job.epochs(options.epochs):
            for inputs, targets, _places in job.batches(loader):
                outputs = model(inputs.to(job.device))
                loss = nn.functional.cross_entropy(outputs, targets.to(job.device))
                fault_injection.reach("within a step")
                loss.backward()  # type: ignore[no-untyped-call]
                if job.step(loss, clip_grad_norm=clip):
                    value = float(loss.detach()).hex()
                    print(f"rank {job.rank} took step {job.steps_done}: {value}", flush=True)
                    if job.steps_done == PAUSE_STEP:
                        _pause(AFTER_STEP)
            [ranks] = job.sum(1.0)
            assert ranks == job.world_size
        print(f"rank {job.rank} ends with {digest(Own(model, optimizer))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
