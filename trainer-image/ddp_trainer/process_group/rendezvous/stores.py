"""Rank 0's store: how it is held and reached, and what ranks register there in each round."""

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
"""A store that takes longer to answer a request is gone, or something else listens there."""
OWN_ADDRESS = "localhost"
"""Rank 0's pod is not to look for itself by name: for a while, DNS names the one it replaces."""
_WAIT_SECONDS = 0.05


def listen(port: int) -> TCPStore:
    """Hold the store in this process.

    Raises:
        NotYetError: somebody else has the port.
    """
    try:
        return TCPStore(OWN_ADDRESS, port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        raise NotYetError(f"rank 0 cannot listen on MASTER_PORT {port}: {reason(error)}") from error


def client(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Reach it; `timeout` is for each request.

    Raises:
        DistNetworkError, DistStoreError: it does not answer.
    """
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)


def connected(address: str, port: int, is_vain: Callable[[], bool]) -> TCPStore:
    """Connect to a store; torch tries an address that is gone for as long as a request may take.

    Raises:
        NotYetError: it is in vain.
        DistNetworkError, DistStoreError: it does not answer.
    """
    found: Queue[TCPStore | Exception] = Queue()

    def connect() -> None:
        try:
            found.put(client(address, port, timedelta(seconds=REQUEST_SECONDS)))
        except Exception as error:
            found.put(error)

    start_thread("store", connect)
    until = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < until:
        with suppress(Empty):
            store = found.get(timeout=_WAIT_SECONDS)
            if isinstance(store, Exception):
                raise store
            return store
        if is_vain():
            raise NotYetError(f"rank 0's store is not at {address} any more")
    raise NotYetError("rank 0's store went away: it does not answer")


def register(store: Store, rank: int, *, number: int, is_new: bool) -> int:
    """Register in the round of this number, whose rank 0 knows by the answer who it has counted.

    `is_new`: whether this process has been in no group yet.
    """
    if is_new:  # first, so that whoever is counted has been announced
        store.add(_newcomers_key(number), 1)
    registrations = int(store.add(registrations_key(rank, number=number), 1))
    store.add(_all_registrations_key(number), 1)
    return registrations


def all_registrations(store: Store, *, number: int) -> int:
    """Those of all ranks in a round."""
    return int(store.add(_all_registrations_key(number), 0))


def count(store: Store, rank: int, *, number: int) -> int:
    """Those of one rank in a round."""
    return int(store.add(registrations_key(rank, number=number), 0))


def newcomers(store: Store, *, number: int) -> int:
    """Processes that came new to a round."""
    return int(store.add(_newcomers_key(number), 0))


def _newcomers_key(number: int) -> str:
    return f"newcomers/{number}"


def _all_registrations_key(number: int) -> str:
    return f"registrations/{number}"


def registrations_key(rank: int, *, number: int) -> str:
    """What there is as soon as a rank has registered in a round."""
    return f"registrations/{number}/{rank}"
