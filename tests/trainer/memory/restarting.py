"""A script that keeps a sharded model (FSDP2, gloo) in memory and is lost on the way.

    python -m tests.trainer.memory.restarting FOLDER ADDRESS

ADDRESS is its launcher's. The ranks save each step N. Those of the first generation then wait for a
file `after-N`. In the end they compare their model with one that trained without interruption.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddp_trainer import memory
from ddp_trainer.memory import loading
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.trainer.memory.fsdp import local, state_of, train, training
from tests.trainer.memory.sameness import same

STEPS = 8


def main(folder: Path, address: str) -> None:
    """Train to the end."""
    loading._LOOPBACK = address  # the pods of a test share one machine
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    model, optimizer = training(mesh, seed=1)
    begin = 0
    if found := memory.load(into=state_of(model, optimizer)):
        begin, state = found
        optimizer.load_state_dict(state["optimizer"])
    rank, generation = dist.get_rank(), os.environ["DDP_GENERATION"]
    print(f"rank {rank} begins after step {begin} in generation {generation}", flush=True)
    (folder / f"{rank}.{generation}").write_text(str(os.getpid()))
    for step in range(begin + 1, STEPS + 1):
        train(model, optimizer, range(step - 1, step))
        memory.save(step, state_of(model, optimizer))
        while generation == "1" and not (folder / f"after-{step}").exists():
            time.sleep(0.01)
    undisturbed, its_optimizer = training(mesh, seed=1)
    train(undisturbed, its_optimizer, range(STEPS))
    states = [local(state_of(*each)) for each in ((model, optimizer), (undisturbed, its_optimizer))]
    end = "as without" if same(*states) else "OTHERWISE than without"
    print(f"rank {rank} ends {end} a loss", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
