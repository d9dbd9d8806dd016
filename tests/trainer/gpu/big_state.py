"""Copies a large state to page-locked memory, twice, and measures it.

    python -m tests.trainer.gpu.big_state GIB

Prints for both copies the time, and the memory of the machine that they hold.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from ddp_trainer.checkpoints.snapshot import Snapshot
from torch import Tensor

_TENSOR_BYTES = 600 << 20
"""Not a power of two, like the weights of models."""


def state_on_gpu(gib: int) -> dict[int, Tensor]:
    """Return tensors with sizes that are no powers of two."""
    return {
        number: torch.full((_TENSOR_BYTES // 4,), float(number), device="cuda")
        for number in range((gib << 30) // _TENSOR_BYTES)
    }


def main(gib: int) -> None:
    """Copy the state twice."""
    state = state_on_gpu(gib)
    count, before, snapshot = len(state), free_bytes(), Snapshot()
    for _ in range(2):
        begun = time.perf_counter()
        copy = snapshot.take(state)
        took = time.perf_counter() - begun
        size = count * _TENSOR_BYTES
        held = before - free_bytes()
        assert all(torch.equal(copy[number], state[number].cpu()) for number in (0, count - 1))
        print(
            json.dumps(
                {
                    "state GiB": round(size / 2**30, 1),
                    "seconds": round(took, 2),
                    "GB/s": round(size / took / 1e9, 1),
                    "held of the state": round(held / size, 2),
                }
            ),
            flush=True,
        )


def free_bytes() -> int:
    """Return the free memory of the machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable")


if __name__ == "__main__":
    main(int(sys.argv[1]))
