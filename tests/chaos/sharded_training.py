"""A training of a model that FSDP2 shards over all ranks, with `join`; runs in pods.

It notes each start, step and end of every rank in a folder that outlives the pods.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import ddp_trainer
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path("/trace")
CALM = "calm"
"""Name of a file: the training pauses after each step until it is there."""
STEP_SECONDS = 0.15
"""Pause after each step."""
LATE_STEP, LATE_STEP_SECONDS = 200, 1.0
"""Later steps take longer: the job must not end before the last disturbance."""
SAMPLES, BATCH_SIZE = 480, 16


def main() -> None:
    """Train to the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    mesh = ddp_trainer.device_mesh()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(SAMPLES, 16)
    samples = TensorDataset(inputs, inputs @ torch.randn(16, 4))
    loader = DataLoader(samples, batch_size=BATCH_SIZE, shuffle=True)
    with ddp_trainer.join(
        model=model, optimizer=optimizer, checkpoint_dir="", max_reforms=100
    ) as job:
        _note("starts", rank, step=job.steps_done, time=time.time())
        for _ in job.epochs(int(os.environ["STEPS"]) * BATCH_SIZE * job.world_size // SAMPLES):
            for batch, targets in job.batches(loader):
                loss = nn.functional.mse_loss(model(batch), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if job.step(loss):
                    _note("steps", rank, step=job.steps_done, loss=float(loss.detach()).hex())
                    if not (FOLDER / CALM).exists():
                        late = job.steps_done >= LATE_STEP
                        time.sleep(LATE_STEP_SECONDS if late else STEP_SECONDS)
        content = hashlib.sha256()
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            content.update(parameter.to_local().detach().numpy().tobytes())
        _note("ends", rank, digest=content.hexdigest())


def _note(file: str, rank: int, **what: object) -> None:
    with (FOLDER / f"{file}.{rank}").open("a") as output:
        output.write(json.dumps({"rank": rank, **what}) + "\n")


if __name__ == "__main__":
    main()
