"""Runs one training loop in four ways: one process, spawn, torchrun, and the DDPJobs' launcher.

    python single_to_multi.py                                    all four, one after another
    python -m ddp_trainer.launch -- python single_to_multi.py    only the last one, in a pod

The loop changes in two lines. All ways end with the same parameters as the single process, because
the ranks share each batch, and DDP averages the gradients of equal shares.
"""

import os
import random
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

BATCH = 24  # over all ranks; divisible by 1, 2, 3 and 4


def train(*, rank: int = 0, world_size: int = 1) -> Tensor:
    """Train a linear model, and return its parameters."""
    torch.manual_seed(0)
    inputs = torch.randn(50 * BATCH, 8)
    targets = inputs @ torch.randn(8, 1)
    model: nn.Module = nn.Linear(8, 1)
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)  # first line: average the gradients
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for first in range(0, len(inputs), BATCH):
        share = slice(first + rank, first + BATCH, world_size)  # second line: 1/n of the batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[share]), targets[share])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def run_rank(how: str) -> None:
    """Form the group of the environment, train, and compare with a single process."""
    dist.init_process_group("gloo")
    parameters = train(rank=dist.get_rank(), world_size=dist.get_world_size())
    difference = (parameters - train()).abs().max().item()
    if difference > 1e-5:
        raise SystemExit(f"{how}: parameters differ by {difference:.1e} from a single process")
    if dist.get_rank() == 0:
        print(f"{how}: {dist.get_world_size()} ranks, differs by {difference:.1e}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


def spawned(rank: int) -> None:
    """Run in each process that `spawn` starts: set by hand the variables of launchers."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    run_rank("spawn")


def main() -> None:
    """Run as a rank, or start ranks in all ways."""
    if "RANK" in os.environ:
        run_rank("torchrun" if dist.is_torchelastic_launched() else "ddp_trainer.launch")
        return
    port = str(random.randrange(20000, 30000))  # outgoing connections do not use these
    print(f"one process: the parameters begin with {train()[:3].tolist()}", flush=True)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port, WORLD_SIZE="2")
    spawn(spawned, nprocs=2)  # type: ignore[no-untyped-call]
    python = [sys.executable, "-m"]
    torchrun = [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, __file__], check=True)
    # In a DDPJob's pods the operator sets these.
    os.environ.update(NODE_RANK="0", LOCAL_WORLD_SIZE="2", DDP_BACKEND="gloo")
    launcher = [*python, "ddp_trainer.launch", "--", sys.executable, __file__]
    subprocess.run(launcher, check=True)


if __name__ == "__main__":
    main()
