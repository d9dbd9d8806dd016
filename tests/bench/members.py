"""Some ranks of a job, each a thread: `python -m tests.bench.members PORT SIZE FIRST LAST`.

They use the trainer's rendezvous and heartbeat and a real store, and no process group. Reads a
command a line, and answers each with a line of JSON; times are of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ddp_trainer.membership import rendezvous
from ddp_trainer.membership.heartbeat import Heartbeat
from ddp_trainer.membership.rendezvous import Membership, Rendezvous
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import end_process
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from tests.trainer.pods import contract

DEADLINE_SECONDS = 300.0
_HEARTBEAT_SECONDS = 10.0
"""The trainer's default."""


class Requests:
    """Counts what this process asks the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def counted(self, kind: type[Any]) -> type[Any]:
        """A store of this kind whose requests count."""

        def counting(name: str) -> Callable[..., Any]:
            original = getattr(kind, name)

            def request(*arguments: Any, **options: Any) -> Any:
                with self._lock:
                    self.count += 1
                return original(*arguments, **options)

            return request

        names = ("add", "set", "get", "check", "wait", "multi_get", "multi_set")
        return type(f"Counted{kind.__name__}", (kind,), {name: counting(name) for name in names})


REQUESTS = Requests()


@dataclass
class Member:
    """One rank."""

    environment: Environment
    rendezvous: Rendezvous
    membership: Membership | None = None
    met_at: float = 0.0
    lost_at: float = 0.0
    heartbeat: Heartbeat | None = None

    @classmethod
    def new(cls, rank: int, *, port: int, size: int) -> Member:
        """A process that has met nobody."""
        variables = contract(node_rank=0, nodes=1, local_world_size=size, port=port)
        found = Environment.from_env(variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        # A pod of its own, whose rank 0 is found by an address.
        placement = replace(
            found.placement, node_rank=rank, local_world_size=1, master_addr="127.0.0.1"
        )
        found = replace(found, local_rank=0, placement=placement)
        return cls(found, Rendezvous(found))

    def meet(self) -> None:
        """Meet the others."""
        self.lost_at = 0.0
        self.membership = self.rendezvous.meet(timeout_seconds=DEADLINE_SECONDS)
        self.met_at = time.monotonic()

    def beat(self) -> None:
        """Say that this rank lives, and hear who does not."""
        assert self.membership is not None
        self.heartbeat = Heartbeat(
            self.membership,
            rank=self.environment.rank,
            size=self.environment.placement.world_size,
            timeout_seconds=_HEARTBEAT_SECONDS,
            on_lost=self._lose,
        )
        self.heartbeat.start()

    def _lose(self, _: str) -> None:
        self.lost_at = time.monotonic()


class Process:
    """The ranks of this process."""

    def __init__(self, port: int, size: int, first: int, last: int) -> None:
        self._place = {"port": port, "size": size}
        self._members = {rank: Member.new(rank, **self._place) for rank in range(first, last + 1)}
        self._pool = ThreadPoolExecutor(len(self._members) + 1)
        self._meetings: list[Any] = []

    def answer(self, command: str, *arguments: str) -> dict[str, float]:
        """Do what a line says."""
        method: Callable[..., dict[str, float]] = getattr(self, command)
        return method(*map(float, arguments))

    def meet(self, *but: float) -> dict[str, float]:
        """Begin to meet, but for some ranks."""
        members = [member for rank, member in self._members.items() if rank not in but]
        self._meetings += [self._pool.submit(member.meet) for member in members]
        return {}

    def come(self, rank: float) -> dict[str, float]:
        """A new process comes for a rank, in the place of another one if there was one."""
        began = time.monotonic()
        member = self._members[int(rank)] = Member.new(int(rank), **self._place)
        self._meetings.append(self._pool.submit(member.meet))
        return {"at": began}

    def met(self) -> dict[str, float]:
        """Wait until all have met."""
        for meeting in self._meetings:
            meeting.result()
        self._meetings.clear()
        return {"at": max(member.met_at for member in self._members.values())}

    def beat(self) -> dict[str, float]:
        """All say that they live."""
        for member in self._members.values():
            member.beat()
        return {}

    def lost(self, *but: float) -> dict[str, float]:
        """Wait until all but some have heard that a rank is lost."""
        members = [member for rank, member in self._members.items() if rank not in but]
        until = time.monotonic() + DEADLINE_SECONDS
        while not all(member.lost_at for member in members):
            if time.monotonic() > until:
                raise TimeoutError("a rank has not heard of the loss")
            time.sleep(0.01)
        return {"at": max(member.lost_at for member in members)}

    def requests(self) -> dict[str, float]:
        """How many there were so far."""
        return {"count": REQUESTS.count}


def main(arguments: Sequence[str]) -> None:
    """Answer until there are no more commands."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(512 * 1024)
    for kind in (TCPStore, PrefixStore):
        setattr(rendezvous, kind.__name__, REQUESTS.counted(kind))
    process = Process(*map(int, arguments))
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(process.answer(*line.split())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    end_process(0)
