"""A script that keeps a sharded model (FSDP2) in memory and is lost on the way.

    python -m tests.trainer.memory.restarting HOW FOLDER ADDRESS

HOW is "plain", or "dcp" for `torch.distributed.checkpoint`. ADDRESS is its launcher's. The ranks
save each step N. Those of the first generation then wait for a file `after-N`. In the end they
compare their model with one that trained without interruption.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddp_trainer import memory
from ddp_trainer.memory import loading
from ddp_trainer.memory.dcp import Reader, Writer
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from tests.trainer.memory.app import App
from tests.trainer.memory.fsdp import DEVICE, form_group, local, state_of, train, training
from tests.trainer.memory.sameness import same

STEPS = 8


def resume(how: str, model: nn.Module, optimizer: Optimizer) -> int:
    """Load the snapshot, if there is one; return its step."""
    if how == "dcp":
        reader = Reader()
        if reader.step is not None:
            dcp_load({"app": App(model, optimizer)}, storage_reader=reader)
        return reader.step or 0
    found = memory.load(into=state_of(model, optimizer))
    if found is None:
        return 0
    optimizer.load_state_dict(found[1]["optimizer"])
    return found[0]


def save(how: str, step: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Save a snapshot."""
    if how == "dcp":
        dcp_save({"app": App(model, optimizer)}, storage_writer=Writer(step))
    else:
        memory.save(step, state_of(model, optimizer))


def main(how: str, folder: Path, address: str) -> None:
    """Train to the end."""
    loading._LOOPBACK = address  # the pods of a test share one machine
    form_group()
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("shard",))
    model, optimizer = training(mesh, seed=1)
    begin = resume(how, model, optimizer)
    rank, generation = dist.get_rank(), os.environ["DDP_GENERATION"]
    print(f"rank {rank} begins after step {begin} in generation {generation}", flush=True)
    (folder / f"{rank}.{generation}").write_text(str(os.getpid()))
    for step in range(begin + 1, STEPS + 1):
        train(model, optimizer, range(step - 1, step))
        save(how, step, model, optimizer)
        while generation == "1" and not (folder / f"after-{step}").exists():
            time.sleep(0.01)
    undisturbed, its_optimizer = training(mesh, seed=1)
    train(undisturbed, its_optimizer, range(STEPS))
    states = [local(state_of(*each)) for each in ((model, optimizer), (undisturbed, its_optimizer))]
    end = "as without" if same(*states) else "OTHERWISE than without"
    print(f"rank {rank} ends {end} a loss", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
