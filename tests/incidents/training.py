"""A plain script of torch's that trains in pods, writes its steps to files, and obeys orders.

The test that disturbs it reads these files. An order is a file `<order>-<rank>-<step>`,
obeyed by the first processes alone.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

TRACE = Path("/trace")
STEP_SECONDS = 0.15
SAVE_EVERY = 5


def load_batch(rank: int, step: int) -> torch.Tensor:
    """Return a batch, unless this rank's data loader is ordered to stop."""
    while _is_ordered("wedge", rank, step):
        time.sleep(1)
    return torch.full((4,), float(rank))


def main() -> None:
    """Train to the last step."""
    checkpoint = Path(os.environ["DDP_CHECKPOINT_DIR"], "step")
    # The default of half an hour is longer than the operator's deadline.
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"group of {world} ranks formed", flush=True)
    steps = int(os.environ["STEPS"])
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done + 1, steps + 1):
        _note(rank, step)
        batch = load_batch(rank, step)
        if _is_ordered("crash", rank, step):
            raise RuntimeError(f"bad batch at step {step}")
        dist.all_reduce(batch)
        time.sleep(STEP_SECONDS)
        if rank == 0:
            if step % SAVE_EVERY == 0:
                _replace(checkpoint, str(step))
            report = {"step": step, "totalSteps": steps, "lastStepTime": _now()}
            _replace(Path(os.environ["DDP_STATUS_FILE"]), json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


def _is_ordered(order: str, rank: int, step: int) -> bool:
    first = (os.environ["DDP_ATTEMPT"], os.environ["DDP_GENERATION"]) == ("0", "0")
    return first and (TRACE / f"{order}-{rank}-{step}").exists()


def _note(rank: int, step: int) -> None:
    line = json.dumps({"time": time.time(), "pod": os.environ["DDP_POD"], "step": step})
    with (TRACE / f"steps.rank{rank}").open("a") as file:
        file.write(line + "\n")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    main()
