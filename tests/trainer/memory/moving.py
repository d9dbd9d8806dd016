"""A script that keeps its model in memory while one of its pods moves to another node.

    python -m tests.trainer.memory.moving KIND FOLDER ADDRESS

KIND is "sharded" (FSDP2) or "replicated". ADDRESS is its launcher's. Each rank writes every step
that it completed to a file. The first generation trains until it is restarted, the next one a few
steps more. In the end the ranks compare their model with one that trained without interruption.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddp_trainer import memory
from ddp_trainer.memory import loading
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW, Optimizer

from tests.trainer.memory.fsdp import DEVICE, form_group, local, state_of, train, training
from tests.trainer.memory.sameness import same

EVERY = 3
"""Steps between saves."""
MORE = 5
"""Steps after the move."""
_MOST = 5000


def step_on(kind: str, model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Take one step."""
    if kind == "sharded":
        train(model, optimizer, range(step - 1, step))
        return
    for parameter in model.parameters():
        parameter.grad = parameter * (dist.get_rank() + step % 7)
        dist.all_reduce(parameter.grad)
    optimizer.step()


def create(kind: str) -> tuple[nn.Module, Optimizer]:
    """Return a new model and its optimizer."""
    if kind == "sharded":
        mesh = init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("shard",))
        return training(mesh, seed=1)
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
        parameter.requires_grad_(False)
    return model, AdamW(model.parameters(), lr=0.01)


def main(kind: str, folder: Path, address: str) -> None:
    """Train to the end."""
    loading._LOOPBACK = address  # the pods of a test share one machine
    form_group()
    model, optimizer = create(kind)
    begin = 0
    if found := memory.load(into=state_of(model, optimizer)):
        begin, saved = found
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    rank, generation = dist.get_rank(), int(os.environ["DDP_GENERATION"])
    print(f"rank {rank} begins after step {begin} in generation {generation}", flush=True)
    end = _MOST if generation == 1 else begin + MORE
    for step in range(begin + 1, end + 1):
        step_on(kind, model, optimizer, step)
        with (folder / f"{rank}.steps").open("a") as steps:
            steps.write(f"{generation} {step}\n")
        if step % EVERY == 0:
            memory.save(step, state_of(model, optimizer), replicated=kind == "replicated")
        if generation == 1:
            time.sleep(0.02)
    undisturbed = create(kind)
    for step in range(1, end + 1):
        step_on(kind, *undisturbed, step)
    states = [local(state_of(*each)) for each in ((model, optimizer), undisturbed)]
    how = "as without" if same(*states) else "OTHERWISE than without"
    print(f"rank {rank} ends {how} a move", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
