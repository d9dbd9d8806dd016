"""Assigns GPUs to ranks: explicit device ids, and nodes with different numbers of GPUs.

    python devices.py                                     acts as two CPU nodes, with 2 and 1 ranks
    torchrun --nproc-per-node 2 devices.py --devices 1,3  GPUs 1 and 3 of this machine

Without GPUs the ranks train on CPUs, with the same numbering.
"""

import argparse
import os
import random
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def device_of(local_rank: int, ids: list[int], gpus: int) -> torch.device:
    """Return the device of a process: entry `local_rank` of the ids of its own machine."""
    if gpus == 0:
        return torch.device("cpu")
    if local_rank >= len(ids) or ids[local_rank] >= gpus:
        raise SystemExit(f"local rank {local_rank} has no GPU: --devices {ids}, {gpus} visible")
    return torch.device("cuda", ids[local_rank])


def run_rank(ids: list[int]) -> None:
    """Train a step on this rank's own device, and check the numbering of all ranks."""
    # RANK counts over all nodes, LOCAL_RANK within a node. If nodes differ in size, RANK is not
    # node x processes + LOCAL_RANK. So do not compute it: the launcher sets it.
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = device_of(local_rank, ids, torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)  # first of all; otherwise all ranks use memory of GPU 0
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    nodes: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, os.environ["GROUP_RANK"])
    mine = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    if mine.index(rank) != local_rank or len(mine) != int(os.environ["LOCAL_WORLD_SIZE"]):
        raise SystemExit(f"rank {rank} is local rank {local_rank}, but its node has ranks {mine}")

    torch.manual_seed(0)
    model = nn.Linear(4, 1).to(device)
    # device_ids: exactly one GPU, this rank's; for a model on a CPU or on several GPUs, None.
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    ddp(torch.full((1, 4), float(rank), device=device)).sum().backward()
    # A fast node with more GPUs simply has more ranks: every rank weighs the same in the average.
    average = sum(range(dist.get_world_size())) / dist.get_world_size()
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad.cpu(), torch.full((1, 4), average))
    line = f"rank {rank}: local rank {local_rank} of {len(mine)}, {device}\n"
    print(line, end="", flush=True)  # in one piece, so that the ranks' lines do not mix
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


def start_nodes(processes: list[int]) -> None:
    """Start torchrun once for each node, as if each were a separate machine."""
    port = str(random.randrange(20000, 30000))  # outgoing connections do not use these
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # real nodes would not share the GPUs
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(processes))]
    torchrun += ["--master-addr", "localhost", "--master-port", port]
    nodes = [
        subprocess.Popen([*torchrun, f"--node-rank={node}", f"--nproc-per-node={n}", __file__])
        for node, n in enumerate(processes)
    ]
    codes = [node.wait() for node in nodes]
    if any(codes):
        raise SystemExit(f"the nodes ended with {codes}")


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--devices", default="0,1,2,3,4,5,6,7", help="GPU of each local rank")
    devices = [int(number) for number in flags.parse_args().devices.split(",")]
    run_rank(devices) if "RANK" in os.environ else start_nodes([2, 1])
