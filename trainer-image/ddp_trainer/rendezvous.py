"""How ranks find each other and agree on who is in the group, as often as it takes.

Rank 0 holds a TCP store under the job's name and port, for as long as its process lives. Nothing is
certain when a rank comes: the name may not resolve yet, the port may be closed, or the store may
still hold a group that is just falling apart. So every formation of a group is a numbered round:
each rank registers in it, and only the registrations that rank 0 counts form the group. Whoever is
not counted tries again, with the next round or the next store, until the deadline.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from ddp_trainer.announcement import AnnouncedAddress, Announcer
from ddp_trainer.config import Environment, Placement
from ddp_trainer.exit_codes import ConfigurationError, RendezvousTimeoutError, StoppedError
from ddp_trainer.failures import reason
from ddp_trainer.sockets import Connections

_RETRY_SECONDS = 0.05
_FIRST_LOG_SECONDS = 1.0
_LOG_EVERY_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
_STORE_REQUEST_SECONDS = 10.0
"""A store that takes longer to answer a request is gone, or something else listens there."""
_OWN_STORE = "localhost"
"""Rank 0's pod is not to look for itself by name: for a while, DNS names the one it replaces."""

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A group that rank 0 has declared complete."""

    root: Store
    """The store of the job, which outlives its groups."""
    address: str
    """Numeric address of rank 0; in its own pod perhaps that of its predecessor."""
    store_address: str
    """Where this rank reaches the store."""
    port: int
    name: str
    """Of this group, and of no other of the job."""
    connections: Connections
    """What this process has connected since it began to look for the group."""
    number: int
    """Of the round in which the group was declared."""
    newcomers: int
    """Processes that came new to this round before it was declared."""

    @property
    def store(self) -> Store:
        """Keys in here belong to this group alone."""
        return PrefixStore(self.name, self.root)

    def connect(self, timeout: timedelta) -> Membership:
        """The same over a connection of its own: others may be busy in a wait."""
        return replace(self, root=_client(self.store_address, self.port, timeout))

    def has_successor(self) -> bool:
        """Whether a new process has come since, in the place of a member that must be dead."""
        return _newcomers(self.root, number=self.number) != self.newcomers


@dataclass(frozen=True, kw_only=True)
class _Identity:
    """What all ranks of one group must have in common."""

    job_name: str
    attempt: int
    world_size: int
    backend: str


class _NotYetError(Exception):
    """Worth another try until the deadline; the message says what is being waited for."""


class _Wait:
    """A wait with an end, and a log line now and then while it lasts."""

    def __init__(self, timeout_seconds: float, told_to_stop: Callable[[], bool]) -> None:
        self._timeout_seconds = timeout_seconds
        self._told_to_stop = told_to_stop
        self._begin = time.monotonic()
        self._next_log = self._begin + _FIRST_LOG_SECONDS

    def pause(self, reason: str) -> None:
        now = time.monotonic()
        if self._told_to_stop():
            raise StoppedError("told to stop while waiting for the other ranks")
        if now - self._begin > self._timeout_seconds:
            raise RendezvousTimeoutError(
                f"gave up after {self._timeout_seconds:.0f} s: {reason} "
                "(--rendezvous-timeout-seconds sets how long to wait)"
            )
        if now > self._next_log:
            self._next_log = now + _LOG_EVERY_SECONDS
            _logger.info(
                "still waiting after %.0f of %.0f s: %s",
                now - self._begin,
                self._timeout_seconds,
                reason,
            )
        time.sleep(_RETRY_SECONDS)


class Rendezvous:
    """Where one rank meets the others; rank 0's holds the store."""

    def __init__(self, environment: Environment, announced: AnnouncedAddress | None = None) -> None:
        """`announced`: where rank 0's pod, or its successor, says that it is."""
        self._environment = environment
        self._announced = announced
        self._announcer = Announcer(environment.placement)
        self._server: TCPStore | None = None
        self._is_new = True

    def meet(
        self, *, timeout_seconds: float, told_to_stop: Callable[[], bool] = lambda: False
    ) -> Membership:
        """Wait until all ranks of the job are there; whoever met them before meets them anew.

        Raises:
            RendezvousTimeoutError: they were not, before the deadline; the message says who is
                missing.
            StoppedError: `told_to_stop` meanwhile.
            ConfigurationError: the ranks were not given the same world size and backend.
        """
        wait = _Wait(timeout_seconds, told_to_stop)
        if self._environment.rank == 0:
            membership = self._host(wait)
        else:
            membership = _retry(lambda: self._try_to_join(wait), wait)
        self._is_new = False
        return membership

    def _host(self, wait: _Wait) -> Membership:
        placement = self._environment.placement
        port = placement.master_port
        address = _retry(self._own_address, wait)
        if self._server is None:
            self._server = _retry(lambda: _listen(port), wait)
            self._server.set("identity", json.dumps(asdict(_identity(self._environment))))
        store = self._server
        connections = Connections()
        # The group's waits are on a connection that can be cut without harm to the store.
        root = _client(_OWN_STORE, port, timedelta(seconds=_STORE_REQUEST_SECONDS))
        number = int(store.add("round", 1))
        _register(store, 0, number=number, is_new=False)
        missing = list(range(1, placement.world_size))
        while missing := [
            rank for rank in missing if not store.check([_registrations_key(rank, number=number)])
        ]:
            self._announcer.tell(sorted({placement.node_rank_of(rank) for rank in missing}))
            wait.pause(f"rank 0 waits for {_some_ranks(missing)} of {placement.world_size}")
        name = secrets.token_hex(8)
        newcomers = _newcomers(store, number=number)  # before the ranks, so that none is missed
        members = [_count(store, rank, number=number) for rank in range(placement.world_size)]
        declared = {"group": name, "members": members, "newcomers": newcomers}
        store.set(_group_key(number), json.dumps(declared))
        return Membership(
            root=root,
            address=address,
            store_address=_OWN_STORE,
            port=port,
            name=name,
            connections=connections,
            number=number,
            newcomers=newcomers,
        )

    def _try_to_join(self, wait: _Wait) -> Membership:
        """Join the first store of the job that answers, wherever rank 0 may be."""
        if self._environment.placement.node_rank == 0:
            return self._join(_OWN_STORE, self._own_address(), wait)
        refusal: _NotYetError | None = None
        for address in self._known_addresses():
            try:
                return self._join(address, address, wait)
            except _NotYetError as error:
                refusal = error
        assert refusal is not None  # names without an address do not resolve
        raise refusal

    def _known_addresses(self) -> Iterator[str]:
        """Where rank 0 may be: what it says itself comes before what DNS remembers of it."""
        announced = self._announced.read() if self._announced is not None else None
        if announced is not None:
            yield announced
        placement = self._environment.placement
        resolved = _resolve(placement.master_addr, placement.master_port)
        yield from (address for address in resolved if address != announced)

    def _own_address(self) -> str:
        """An address of rank 0's pod, in this pod."""
        placement = self._environment.placement
        try:
            return _resolve(placement.master_addr, placement.master_port)[0]
        except _NotYetError:
            # The kubelet writes each pod's hostname into its /etc/hosts.
            return _resolve(socket.gethostname(), placement.master_port)[0]

    def _join(self, store_address: str, address: str, wait: _Wait) -> Membership:
        """Register with a store, and see whether its group counts this rank."""
        placement, rank = self._environment.placement, self._environment.rank
        _expect_answer(store_address, placement)
        connections = Connections()
        try:
            with connections.cut_unless_done_within(_STORE_REQUEST_SECONDS):
                store = _client(
                    store_address, placement.master_port, timedelta(seconds=_STORE_REQUEST_SECONDS)
                )
                self._compare(json.loads(store.get("identity")))
                number = int(store.add("round", 0))
                registration = _register(store, rank, number=number, is_new=self._is_new)
            while True:
                with connections.cut_unless_done_within(_STORE_REQUEST_SECONDS):
                    if store.check([_group_key(number)]):
                        declared = json.loads(store.get(_group_key(number)))
                        break
                    if int(store.add("round", 0)) != number:
                        raise _NotYetError("rank 0 has begun another round")
                wait.pause(f"rank 0 at {placement.master_addr} waits for the other ranks")
        except (DistNetworkError, DistStoreError) as error:
            raise _NotYetError(f"rank 0's store went away: {reason(error)}") from error
        if declared["members"][rank] != registration:
            # It counted this rank's predecessor, and is about to break for want of it.
            raise _NotYetError("rank 0 has not left its old group yet")
        return Membership(
            root=store,
            address=address,
            store_address=store_address,
            port=placement.master_port,
            name=declared["group"],
            connections=connections,
            number=number,
            newcomers=declared["newcomers"],
        )

    def _compare(self, identity: Mapping[str, Any]) -> None:
        theirs, ours = _Identity(**identity), _identity(self._environment)
        if (theirs.job_name, theirs.attempt) != (ours.job_name, ours.attempt):
            placement = self._environment.placement
            raise _NotYetError(
                f"{placement.master_addr} port {placement.master_port} still belongs to attempt "
                f"{theirs.attempt} of {theirs.job_name}"
            )
        if theirs != ours:
            raise ConfigurationError(
                f"rank 0 has WORLD_SIZE {theirs.world_size} and DDP_BACKEND {theirs.backend}, this "
                f"rank {ours.world_size} and {ours.backend}: give all ranks the same"
            )


def _identity(environment: Environment) -> _Identity:
    placement = environment.placement
    return _Identity(
        job_name=placement.job_name,
        attempt=placement.attempt,
        world_size=placement.world_size,
        backend=placement.backend,
    )


def _retry(attempt: Callable[[], _T], wait: _Wait) -> _T:
    while True:
        try:
            return attempt()
        except _NotYetError as error:
            wait.pause(str(error))


def _resolve(name: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise _NotYetError(f"MASTER_ADDR {name} does not resolve yet ({error.strerror})") from error
    return [str(address[0]) for *_, address in found]


def _expect_answer(address: str, placement: Placement) -> None:
    """See whether anybody listens there."""
    name, port = placement.master_addr, placement.master_port
    try:
        socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise _NotYetError(
            f"rank 0 does not answer at {name} ({address}) port {port}: {error}"
        ) from error


def _listen(port: int) -> TCPStore:
    try:
        return TCPStore(_OWN_STORE, port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        raise _NotYetError(
            f"rank 0 cannot listen on MASTER_PORT {port}: {reason(error)}"
        ) from error


def _client(address: str, port: int, timeout: timedelta) -> TCPStore:
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)


def _register(store: Store, rank: int, *, number: int, is_new: bool) -> int:
    if is_new:  # first, so that whoever is counted has been announced
        store.add(_newcomers_key(number), 1)
    return int(store.add(_registrations_key(rank, number=number), 1))


def _count(store: Store, rank: int, *, number: int) -> int:
    return int(store.add(_registrations_key(rank, number=number), 0))


def _newcomers(store: Store, *, number: int) -> int:
    return int(store.add(_newcomers_key(number), 0))


def _newcomers_key(number: int) -> str:
    return f"newcomers/{number}"


def _registrations_key(rank: int, *, number: int) -> str:
    return f"registrations/{number}/{rank}"


def _group_key(number: int) -> str:
    return f"group/{number}"


def _some_ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', …' if len(ranks) > 8 else ''}"
