"""Forms a group of one rank, leaves it and forms it again.

    python -m tests.trainer.gpu.cycles COUNT

Prints the resources of the process and the times, after a tenth of the groups and at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.settings.environment import Environment
from torch import distributed as dist


def main(count: int) -> None:
    """Form this many groups."""
    prepare_nccl()
    world = GroupFormer(
        Environment.from_env(os.environ), group_timeout_seconds=600, heartbeat_timeout_seconds=5
    )
    numbers = torch.ones(1 << 20, device=world.device)
    forming, leaving = [], []
    for number in range(1, count + 1):
        begun = time.monotonic()
        try:
            with world.formed(timeout_seconds=60) as group:
                dist.all_reduce(numbers, group=group.world)
                torch.cuda.synchronize()
                forming.append(time.monotonic() - begun)
                begun = time.monotonic()
                raise BrokenGroupError("the test leaves it")
        except BrokenGroupError:
            leaving.append(time.monotonic() - begun)
        if number in (count // 10, count):
            print(json.dumps(held(forming, leaving)), flush=True)
    os._exit(0)


def held(forming: list[float], leaving: list[float]) -> dict[str, object]:
    """Return this process's resources, and a group's seconds: median and longest."""
    free, total = torch.cuda.mem_get_info()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "groups": len(forming),
        "forming": [round(statistics.median(forming), 3), round(max(forming), 3)],
        "leaving": [round(statistics.median(leaving), 3), round(max(leaving), 3)],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": sorted(thread.name for thread in threading.enumerate()),
        "device MiB": (total - free) >> 20,
        "host MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
