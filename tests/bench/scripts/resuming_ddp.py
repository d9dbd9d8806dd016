"""The script that people write by hand to survive a lost process: checkpoints and torchrun.

    torchrun --nproc-per-node 2 --max-restarts 3 -m tests.bench.scripts.resuming_ddp FOLDER STEPS \
        [STEP_SECONDS]

Each rank notes the steps that it begins in `FOLDER/begun.rankN`, as the trainer's `--trace-samples`
does. Its processes have the names that the trainer's have, by which tests find them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from ddp_trainer import workloads
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT_EVERY_STEPS = 20
STEP_SECONDS = 0.02
"""A pause in each step, so that a kill can be aimed between two checkpoints."""
BATCH_SIZE = 32


def main(folder: Path, steps: int, step_seconds: float = STEP_SECONDS) -> None:
    """Train, from the checkpoint where there is one."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    Path("/proc/self/comm").write_text(f"ddp-rank-{rank}")
    workload = workloads.load("digits")
    torch.manual_seed(0)
    model = DistributedDataParallel(workload.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint, first = folder / "state.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    with (folder / f"begun.rank{rank}").open("a", buffering=1) as begun:
        for step in range(first + 1, steps + 1):
            begun.write(json.dumps({"step": step, "pid": os.getpid()}) + "\n")
            generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
            batch = torch.randint(len(workload.train), (BATCH_SIZE,), generator=generator)
            inputs, targets = workload.train.batch(batch.tolist())
            optimizer.zero_grad()
            workload.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if rank == 0 and step % CHECKPOINT_EVERY_STEPS == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                }
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").rename(checkpoint)
            time.sleep(step_seconds)
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
