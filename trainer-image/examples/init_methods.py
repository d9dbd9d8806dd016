"""Four ways in which ranks find each other and form a process group.

python init_methods.py                               tries all four here, with two ranks each
torchrun --nproc-per-node 2 init_methods.py          as ranks that a launcher has started:
python -m ddp_trainer.launch -- python init_methods.py [env | tcp | file]
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

METHODS = ("env", "tcp", "file")


def form_group(method: str, env: Mapping[str, str]) -> None:
    """Join the group with the rank and the addresses from `env`."""
    rank, world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
    timeout = timedelta(seconds=120)  # the default of 30 minutes hides errors for a long time
    if method == "env":  # MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE: most launchers set them
        os.environ.update(env)
        dist.init_process_group("gloo", init_method="env://", timeout=timeout)
        return
    if method == "tcp":  # the address is in the program; rank 0 listens there
        url = f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    else:  # a new file that all ranks can write; no earlier group may have used it
        folder = Path(env["DDP_CHECKPOINT_DIR"])
        url = f"file://{folder}/init-{env.get('DDP_ATTEMPT', '0')}"
    dist.init_process_group(
        "gloo", init_method=url, rank=rank, world_size=world_size, timeout=timeout
    )


def run_rank(method: str, env: Mapping[str, str]) -> None:
    """Form a group, and check that all ranks are in it."""
    form_group(method, env)
    ranks = torch.tensor([dist.get_rank()])
    dist.all_reduce(ranks)
    n = dist.get_world_size()
    if (n, int(ranks)) != (int(env["WORLD_SIZE"]), n * (n - 1) // 2):
        raise SystemExit(f"{method}: {n} ranks with sum {int(ranks)}")
    if dist.get_rank() == 0:
        by = "torchrun" if dist.is_torchelastic_launched() else "RANK and WORLD_SIZE"
        print(f"{method}://, set by {by}: a group of {n} ranks", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


def spawned(rank: int, method: str, env: Mapping[str, str]) -> None:
    """`spawn` calls this in a new process, which only knows its rank."""
    run_rank(method, {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})


def main() -> None:
    """Run as a rank, or start ranks in all four ways."""
    if "RANK" in os.environ:
        run_rank(sys.argv[1] if len(sys.argv) > 1 else "env", os.environ)
        return
    port = str(random.randrange(20000, 30000))  # outgoing connections do not use these
    with tempfile.TemporaryDirectory() as folder:
        env = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        for method in METHODS:
            arguments = (method, {**env, "DDP_CHECKPOINT_DIR": folder})
            spawn(spawned, arguments, nprocs=2)  # type: ignore[no-untyped-call]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*torchrun, "--nproc-per-node", "2", __file__], check=True)


if __name__ == "__main__":
    main()
