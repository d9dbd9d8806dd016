"""Members of a large group that meet, meet again, and watch each other: each a process of its own.

    python -m tests.bench.scripts.rendezvous_members SIZE PORT LAST AGAIN WATCH

LAST, AGAIN and WATCH are file descriptors: a member begins with what they stand for when it has
read a byte from there; LAST is for the member that the others wait for. The store and the code are
the trainer's; there is no group of torch's, since its full mesh would not fit a machine.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from ddp_trainer.process_group.heartbeat import Heartbeat
from ddp_trainer.process_group.rendezvous import stores
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.rendezvous.rendezvous import Rendezvous
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.deathsignal import die_with_parent
from torch._C._distributed_c10d import TCPStore

from tests.trainer.support.pods import contract

HEARTBEAT_SECONDS = 10.0
"""After so long a silent member counts as lost: the trainer's default."""
_MEETING_SECONDS = 300.0
_requests = 0


def _counted(name: str) -> Callable[..., Any]:
    ask: Callable[..., Any] = getattr(TCPStore, name)

    def asked(*arguments: Any) -> Any:
        global _requests  # noqa: PLW0603 - of the process
        _requests += 1
        return ask(*arguments)

    return asked


_REQUESTS = {name: _counted(name) for name in ("get", "set", "add", "check")}
CountingStore = type("CountingStore", (TCPStore,), _REQUESTS)
"""Counts what this process asks."""


def live(rank: int, size: int, port: int, last: int, again: int, watch: int) -> NoReturn:
    """Be one member, until the others know that one is lost."""
    variables = contract(node_rank=rank, nodes=size, port=port)
    environment = Environment.from_env({**variables, "RANK": str(rank), "LOCAL_RANK": "0"})
    here = Rendezvous(environment)
    _tell("begun", rank)
    if rank == size - 1:
        os.read(last, 1)
    _meet(here, "met", rank)
    os.read(again, 1)
    membership = _meet(here, "met again", rank)
    os.read(watch, 1)
    lost = threading.Event()
    heartbeat = Heartbeat(
        membership,
        rank=rank,
        size=size,
        timeout_seconds=HEARTBEAT_SECONDS,
        on_lost=lambda _: lost.set(),
    )
    heartbeat.start()
    lost.wait()
    _tell("told", rank)
    threading.Event().wait()
    os._exit(0)


def _meet(here: Rendezvous, event: str, rank: int) -> Membership:
    begin, requests, cpu = time.monotonic(), _requests, time.process_time()
    membership = here.meet(timeout_seconds=_MEETING_SECONDS)
    _tell(
        event,
        rank,
        group=membership.name,
        seconds=time.monotonic() - begin,
        requests=_requests - requests,
        cpu=time.process_time() - cpu,
    )
    return membership


def _tell(event: str, rank: int, **more: object) -> None:
    line = {"event": event, "rank": rank, "pid": os.getpid(), "time": time.monotonic(), **more}
    os.write(1, json.dumps(line).encode() + b"\n")  # so short a line comes in one piece


def main(size: int, *others: int) -> None:
    """Fork all members, and wait for the end of the measurement."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    vars(stores)["TCPStore"] = CountingStore
    parent = os.getpid()
    for rank in range(size):
        if os.fork() == 0:
            die_with_parent(parent)
            live(rank, size, *others)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
