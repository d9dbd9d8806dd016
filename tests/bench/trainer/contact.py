"""The first contact of a group's ranks: what it takes rank 0's store, and each rank.

All ranks are threads of one process; the store is a process by itself. Memory and open files end
this before 512 ranks. Time for them is told by what the numbers of ranks below have taken.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median

from ddp_trainer.settings.timeouts import contact_seconds
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from tests.bench.benchmark import Outcome, Settings, spread
from tests.ports import free_port

SIZES = (16, 32, 64)
LARGE = 512
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Contact:
    """One group's, in seconds of CPU time."""

    store: float
    """Of the store, for each pair of a rank and what it reads."""
    rank: float
    """Of a rank, for each rank."""


def measure(settings: Settings) -> Outcome:
    """Form groups of several sizes, one after the other."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    found = {size: [_form(size) for _ in range(settings.repeat)] for size in SIZES}
    largest = found[SIZES[-1]]
    expected = median(contact.store for contact in largest) * LARGE**2
    lines = [
        f"repetitions  {settings.repeat}; CPU time, shown: median (min-max)",
        "",
        f"{'ranks':>6}{'store, us per rank and rank':>32}{'a rank, us per rank':>32}",
        *(
            f"{size:>6}{_microseconds([one.store for one in contacts]):>32}"
            f"{_microseconds([one.rank for one in contacts]):>32}"
            for size, contacts in found.items()
        ),
        "",
        f"{LARGE} ranks: {expected:.0f} s of the store; allowed are {contact_seconds(LARGE):.0f} s",
    ]
    return Outcome(
        "\n".join(lines),
        {str(size): [asdict(contact) for contact in contacts] for size, contacts in found.items()},
    )


def _form(size: int) -> Contact:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.scripts.store", str(port)]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        ThreadPoolExecutor(size) as pool,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def store_seconds() -> float:
            print(file=process.stdin, flush=True)
            return float(process.stdout.readline())  # type: ignore[union-attr]

        process.stdout.readline()  # it listens
        stores = [
            PrefixStore("group", TCPStore("localhost", port, is_master=False, timeout=_TIMEOUT))
            for _ in range(size)
        ]
        of_store, of_ranks = store_seconds(), time.process_time()
        ranks = [
            pool.submit(dist.ProcessGroupGloo, store, rank, size, _TIMEOUT)
            for rank, store in enumerate(stores)
        ]
        groups = [rank.result() for rank in ranks]
        of_ranks, of_store = time.process_time() - of_ranks, store_seconds() - of_store
        groups.clear()
        ranks.clear()
        process.stdin.close()
    return Contact(store=of_store / size**2, rank=of_ranks / size**2)


def _microseconds(seconds: list[float]) -> str:
    return spread([1e6 * one for one in seconds], 0)
