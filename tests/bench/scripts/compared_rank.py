"""One rank of two that compare their replicas after each step. A bit flips after `FLIP_AT` steps.

python -m ddp_trainer.launch -- python -m tests.bench.scripts.compared_rank STEPS FLIP_AT
"""

from __future__ import annotations

import sys

import ddp_trainer
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library.checks.flipping import flip

_BATCH = 4


def main(steps: int, flip_at: int) -> None:
    """Train. `flip_at`: 0: no bit flips."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(_BATCH * 2048, 8)
    samples = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    with ddp_trainer.join(model=model, optimizer=optimizer, verify_replicas=1) as job:
        net = job.wrap(model)
        loader = DataLoader(samples, batch_size=_BATCH, shuffle=True)
        flips = flip_at and job.rank == 1
        for _ in job.epochs(steps, max_steps=steps):
            for batch, targets in job.batches(loader):
                loss = nn.functional.mse_loss(net(batch), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
                if flips and job.steps_done == flip_at:
                    flip(next(model.parameters()).data, 0)
                    flips = False
    print(f"completed {job.steps_done} steps", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
