"""The same script as `resuming_ddp`, with `import ddp_trainer` instead of checkpoints by hand.

python -m ddp_trainer.launch -- python -m tests.bench.scripts.joined_ddp FOLDER STEPS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ddp_trainer
import torch
from ddp_trainer import workloads
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.scripts.resuming_ddp import BATCH_SIZE, CHECKPOINT_EVERY_STEPS, STEP_SECONDS


def prepare() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """All that the script does before it joins."""
    workload = workloads.load("digits")
    torch.manual_seed(0)
    model = workload.model()
    samples = TensorDataset(*workload.train.batch(range(len(workload.train))))
    loader = DataLoader(samples, batch_size=BATCH_SIZE, shuffle=True)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), loader


def main(folder: Path, steps: int) -> None:
    """Train, for as long as there are steps to take."""
    model, optimizer, loader = prepare()
    with (
        ddp_trainer.join(
            model=model, optimizer=optimizer, checkpoint_every_steps=CHECKPOINT_EVERY_STEPS
        ) as job,
        (folder / f"begun.rank{job.rank}").open("a", buffering=1) as begun,
    ):
        net = job.wrap(model)
        for _ in job.epochs(steps):
            for inputs, targets in job.batches(loader):
                begun.write(json.dumps({"step": job.steps_done + 1, "pid": os.getpid()}) + "\n")
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step()
                time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
