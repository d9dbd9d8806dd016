"""A plain script of torch's that trains in pods, writes its steps to files, and obeys orders.

It runs under the operator's launcher and under torchrun. The test that disturbs it reads its files.
An order is a file `<order>-<rank>-<step>`, and is obeyed once.
"""

from __future__ import annotations

import io
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

TRACE = Path("/trace")
STEP_SECONDS = 0.15
SAVE_EVERY = 10


def load_batch(rank: int, step: int) -> torch.Tensor:
    """Return a batch, unless this rank's data loader is ordered to stop."""
    if _is_ordered("wedge", rank, step):
        while True:
            time.sleep(1)
    if _is_ordered("spin", rank, step):
        while True:
            pass
    return torch.full((4,), float(rank))


def main() -> None:
    """Train to the last step."""
    checkpoint = Path(os.environ["DDP_CHECKPOINT_DIR"], "state.pt")
    # The default of half an hour is longer than the operator's deadline.
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    # The test finds the process by the name that the operator's launcher gives it too.
    Path("/proc/self/comm").write_text(f"ddp-rank-{rank}")
    print(f"group of {world} ranks formed", flush=True)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = int(os.environ["STEPS"])
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        done = saved["step"]
    for step in range(done + 1, steps + 1):
        _note(rank, step)
        batch = load_batch(rank, step)
        if _is_ordered("crash", rank, step):
            raise RuntimeError(f"bad batch at step {step}")
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        if rank == 0:
            if step % SAVE_EVERY == 0:
                _save(checkpoint, {"step": step, "model": model.state_dict()})
            _report(step, steps)
    dist.barrier()
    dist.destroy_process_group()


def _is_ordered(order: str, rank: int, step: int) -> bool:
    path = TRACE / f"{order}-{rank}-{step}"
    obeyed = path.with_name(f"{path.name}.obeyed")
    if not path.exists() or obeyed.exists():
        return False
    obeyed.touch()
    return True


def _note(rank: int, step: int) -> None:
    line = json.dumps({"time": time.time(), "pod": os.environ["DDP_POD"], "step": step})
    with (TRACE / f"steps.rank{rank}").open("a") as file:
        file.write(line + "\n")


def _save(path: Path, state: object) -> None:
    data = io.BytesIO()
    torch.save(state, data)
    _replace(path, data.getvalue())


def _report(step: int, steps: int) -> None:
    if file := os.environ.get("DDP_STATUS_FILE"):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        report = {"step": step, "totalSteps": steps, "lastStepTime": now}
        _replace(Path(file), json.dumps(report).encode())


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


if __name__ == "__main__":
    main()
