"""A script that knows only torch: FSDP2, and DCP with a folder for each step as in torchtitan.

    python plain_script.py HOW FOLDER [...]

HOW is "save" or "async_save". `$CHECKPOINTS` has the folders `step-N`. The ranks train as far as
the file `target` in FOLDER allows. They write the losses of all steps there, and in the end those
of a training without interruption.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", "8"))


class Training(Stateful):
    """A model, its optimizer, and the number of steps."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)
        self.step = state["step"]

    def train(self) -> float:
        """Train one step; return this rank's loss."""
        generator = torch.Generator().manual_seed(self.step * 100 + dist.get_rank())
        loss = self.model(torch.randn(4, 3, generator=generator)).square().sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.item())


def newest(folder: str) -> int:
    """Return the step of the newest whole checkpoint; 0: there is none."""
    if not os.path.isdir(folder):
        return 0
    names = [name for name in os.listdir(folder) if name.startswith("step-")]
    whole = [name for name in names if os.path.isfile(os.path.join(folder, name, ".metadata"))]
    return max((int(name.removeprefix("step-")) for name in whole), default=0)


def wait_for(step: int, folder: Path) -> None:
    """Wait until a step may be trained."""
    while int((folder / "target").read_text()) < step:
        time.sleep(0.01)


def main(how: str, folder: Path) -> None:
    """Train to the end."""
    dist.init_process_group("gloo")
    rank, checkpoints = dist.get_rank(), os.environ["CHECKPOINTS"]
    generation = os.environ["DDP_GENERATION"]
    training = Training(seed=1)
    state = {"training": training}
    if step := newest(checkpoints):
        path = os.path.join(checkpoints, f"step-{step}")
        dcp.load(state, checkpoint_id=path)  # type: ignore[attr-defined]
    print(f"rank {rank} begins after step {training.step}, found {step}", flush=True)
    (folder / f"{rank}.{generation}").write_text(f"{os.getpid()} {training.step} {step}")
    saving: Any = None
    saving_group = dist.new_group(backend="gloo")
    with open(folder / f"losses-{rank}", "a") as losses:
        while training.step < STEPS:
            wait_for(training.step + 1, folder)
            loss = training.train()
            print(training.step, loss.hex(), file=losses, flush=True)
            path = os.path.join(checkpoints, f"step-{training.step}")
            if how == "async_save":
                if saving is not None:
                    saving.result()
                saving = dcp.async_save(  # type: ignore[attr-defined]
                    state, checkpoint_id=path, process_group=saving_group
                )
            else:
                dcp.save(state, checkpoint_id=path)  # type: ignore[attr-defined]
    if saving is not None:
        saving.result()
    undisturbed = Training(seed=1)
    expected = [undisturbed.train().hex() for _ in range(STEPS)]
    (folder / f"expected-{rank}").write_text("\n".join(expected))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
