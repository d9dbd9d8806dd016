"""Saves a large state on a GPU with `memory.save`, several times, and measures the wait.

    python -m tests.trainer.gpu.saving GIB

Prints for each save its time, and the time of a copy of the state to page-locked memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from ddp_trainer import memory
from ddp_trainer.devices.page_locked import page_locked_like

from tests.trainer.gpu.big_state import state_on_gpu


def main(gib: int) -> None:
    """Save the state several times."""
    state = state_on_gpu(gib)
    copies = list(page_locked_like(list(state.values())))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {
            "DDP_MEMORY_DIR": folder,
            "DDP_MEMORY_BYTES": str(4 * (gib + 1) << 30),
            "DDP_MEMORY_COPIES": "0",
        }
        own = Path(folder, "own/0")
        for step in range(1, 6):
            copied = seconds(partial(copy, state, copies))
            begun = time.perf_counter()
            saved = memory.save(step, state)
            took = time.perf_counter() - begun
            result = {
                "saved": saved,
                "seconds": round(took, 3),
                "a copy, seconds": round(copied, 3),
            }
            print(json.dumps(result), flush=True)
            # As the launcher does once a step is complete.
            *older, _newest = sorted(own.glob("*.snapshot"), key=lambda file: file.stat().st_mtime)
            for file in older:
                file.rename(own / "free")


def copy(state: dict[int, torch.Tensor], copies: list[torch.Tensor]) -> None:
    """Copy to page-locked memory."""
    for source, target in zip(state.values(), copies, strict=True):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


def seconds(work: Callable[[], None]) -> float:
    """Return how long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(int(sys.argv[1]))
