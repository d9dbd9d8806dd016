"""A script with one rank, which has a fault in its first process.

    python -m tests.trainer.gpu.faulty FAULT FILE [FRACTION]

FILE is written before the fault. FRACTION is the part of the GPU's memory that the script holds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ddp_trainer
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FAULT_AT = 4


def _read_beyond() -> None:
    torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")]


def _write_anywhere() -> None:
    source = 'extern "C" __global__ void write(float *place) { place[1ull << 40] = 1; }'
    kernel = torch.cuda._compile_kernel(source, "write")
    kernel((1, 1, 1), (1, 1, 1), (torch.zeros(1, device="cuda"),))


FAULTS: dict[str, Callable[[], object]] = {
    "device assert": _read_beyond,
    "illegal address": _write_anywhere,
    "out of memory": lambda: torch.empty(1 << 42, dtype=torch.uint8, device="cuda"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def main(fault: str, marker: Path, fraction: float) -> None:
    """Train."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8)
    begun = time.monotonic()
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        _, total = torch.cuda.mem_get_info()
        held = torch.ones(int(total * fraction), dtype=torch.uint8, device=job.device)
        torch.cuda.synchronize()
        print(f"holds {len(held) >> 30} GiB after {time.monotonic() - begun:.1f} s", flush=True)
        net = job.wrap(model)
        for _ in job.epochs(1):
            for inputs, targets in job.batches(loader):
                outputs = net(inputs.to(job.device))
                loss = (outputs - targets.to(job.device)).square().mean()
                loss.backward()
                if job.steps_done == FAULT_AT and not marker.exists():
                    marker.touch()
                    FAULTS[fault]()
                job.step(loss)
        print("took all its steps", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
