"""Rank 0's store: hosting it, connecting to it, and registering in each round."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, Queue

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from ddp_trainer.process_group.failures import reason
from ddp_trainer.process_group.rendezvous.retry import NotYetError
from ddp_trainer.system.threads import start_thread

REQUEST_SECONDS = 10.0
"""If an answer takes longer, the store is gone or another program listens at its port."""
OWN_ADDRESS = "localhost"
"""Rank 0's pod does not look itself up: DNS may still return the pod that it replaces."""
_WAIT_SECONDS = 0.05


def listen(port: int) -> TCPStore:
    """Host the store in this process.

    Raises:
        NotYetError: another process uses the port.
    """
    try:
        return TCPStore(OWN_ADDRESS, port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        raise NotYetError(f"rank 0 cannot listen on MASTER_PORT {port}: {reason(error)}") from error


def client(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Connect to the store; `timeout` applies to each request.

    Raises:
        DistNetworkError, DistStoreError: the store does not answer.
    """
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)


def connected(address: str, port: int, is_vain: Callable[[], bool]) -> TCPStore:
    """Connect to a store in a thread, because torch tries a dead address until the timeout.

    Raises:
        NotYetError: `is_vain` returned True, or the store did not answer in time.
        DistNetworkError, DistStoreError: the connection failed.
    """
    found: Queue[TCPStore | Exception] = Queue()

    def connect() -> None:
        try:
            found.put(client(address, port, timedelta(seconds=REQUEST_SECONDS)))
        except Exception as error:
            found.put(error)

    start_thread("ddp: connects to the store", connect)
    until = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < until:
        with suppress(Empty):
            store = found.get(timeout=_WAIT_SECONDS)
            if isinstance(store, Exception):
                raise store
            return store
        if is_vain():
            raise NotYetError(f"rank 0's store is no longer at {address}")
    raise NotYetError("rank 0's store went away: it does not answer")


def register(store: Store, rank: int, *, number: int, is_new: bool) -> int:
    """Register in the round of this number and return how often this rank has registered in it.

    Rank 0 publishes the count that it saw, so a rank knows whether it was counted. `is_new`:
    whether this process has been in no group yet.
    """
    if is_new:  # first, so that each counted rank has been announced
        store.add(_newcomers_key(number), 1)
    registrations = int(store.add(registrations_key(rank, number=number), 1))
    store.add(_all_registrations_key(number), 1)
    return registrations


def all_registrations(store: Store, *, number: int) -> int:
    """Return the number of registrations of all ranks in a round."""
    return int(store.add(_all_registrations_key(number), 0))


def count(store: Store, rank: int, *, number: int) -> int:
    """Return the number of registrations of one rank in a round."""
    return int(store.add(registrations_key(rank, number=number), 0))


def newcomers(store: Store, *, number: int) -> int:
    """Return the number of new processes in a round."""
    return int(store.add(_newcomers_key(number), 0))


def _newcomers_key(number: int) -> str:
    return f"newcomers/{number}"


def _all_registrations_key(number: int) -> str:
    return f"registrations/{number}"


def registrations_key(rank: int, *, number: int) -> str:
    """Return the key that exists as soon as a rank has registered in a round."""
    return f"registrations/{number}/{rank}"
