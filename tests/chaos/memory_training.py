"""A training that resumes from memory alone, each rank with a state of its own; runs in pods.

It notes each start and the end of every rank in a folder that outlives the pods.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_trainer import memory
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path("/trace")
CALM = "calm"
"""Name of a file: the training pauses after each step until it is there."""
DIE_IN_SAVE = "die-in-save"
"""Files `die-in-save.RANK.NUMBER` hold the seconds after which a rank dies in its next save."""
INTERVAL = 4
"""Steps between two saves."""
STEP_SECONDS = 0.15
"""Pause after each step."""
LATE_STEP, LATE_STEP_SECONDS = 200, 1.0
"""Later steps take longer: the job must not end before the last disturbance."""
BALLAST = 1 << 17
"""Numbers of 8 bytes in the state: saves and copies take some time."""


def main() -> None:
    """Train to the end."""
    steps = int(os.environ["STEPS"])
    torch.set_num_threads(1)
    dist.init_process_group(os.environ["DDP_BACKEND"])
    rank = dist.get_rank()
    torch.manual_seed(0)
    wanted = torch.randn(16, 4)
    # Without a bias: with two parameters, DDP changes the order of its sums after its first step.
    model = torch.nn.Linear(16, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = torch.Generator().manual_seed(rank)  # each rank draws its own
    ballast = torch.zeros(BALLAST, dtype=torch.int64)
    generation = int(os.environ["DDP_GENERATION"])

    done = 0
    start: dict[str, Any] = {"step": 0, "saved_in": None, "of_rank": rank, "whole": True}
    if found := memory.load():
        done, saved = found
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        samples.set_state(saved["samples"])
        ballast = saved["ballast"]
        start = {
            "step": saved["step"],
            "saved_in": saved["generation"],
            "of_rank": saved["rank"],
            "whole": saved["step"] == done and bool((ballast == done * 100 + rank).all()),
        }
    _note("starts", rank, generation=generation, pod=os.environ["POD"], time=time.time(), **start)

    ddp = DistributedDataParallel(model)
    for step in range(done + 1, steps + 1):
        inputs = torch.randn(32, 16, generator=samples)
        loss = torch.nn.functional.mse_loss(ddp(inputs), inputs @ wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % INTERVAL == 0:
            ballast.fill_(step * 100 + rank)
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "samples": samples.get_state(),
                "ballast": ballast,
                "rank": rank,
                "generation": generation,
                "step": step,
            }
            _die_soon(rank)
            memory.save(step, state)
        if not (FOLDER / CALM).exists():
            time.sleep(STEP_SECONDS if step < LATE_STEP else LATE_STEP_SECONDS)
    content = hashlib.sha256()
    for tensor in (*model.parameters(), *_moments(optimizer), samples.get_state(), ballast):
        content.update(tensor.detach().numpy().tobytes())
    _note("ends", rank, loss=float(loss.detach()).hex(), digest=content.hexdigest())
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = optimizer.state_dict()["state"]
    return [tensor for _, state in sorted(states.items()) for _, tensor in sorted(state.items())]


def _die_soon(rank: int) -> None:
    """Kill this process during the save that follows, or soon after it, if a file says so."""
    for order in FOLDER.glob(f"{DIE_IN_SAVE}.{rank}.*"):
        obeyed = FOLDER / f"obeyed-{order.name}"  # it must not delete files of another user
        if not obeyed.exists():
            obeyed.touch()
            seconds = float(order.read_text())
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _note(file: str, rank: int, **what: object) -> None:
    with (FOLDER / f"{file}.{rank}").open("a") as output:
        output.write(json.dumps({"rank": rank, **what}) + "\n")


if __name__ == "__main__":
    main()
