"""How ranks find each other and agree on who is in the group, as often as it takes.

Rank 0 holds a TCP store under the job's name and port, for as long as its process lives. Nothing is
certain when a rank comes: the name may not resolve yet, the port may be closed, or the store may
still hold a group that is just falling apart. So every formation of a group is a numbered round:
each rank registers in it, and only the registrations that rank 0 counts form the group. Whoever is
not counted tries again, with the next round or the next store, until the deadline.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.membership.announcement import AnnouncedAddress, Announcer
from ddp_trainer.membership.failures import reason
from ddp_trainer.membership.network import Resolver, expect_answer
from ddp_trainer.membership.retry import NotYetError, Wait, retry
from ddp_trainer.membership.sockets import Connections
from ddp_trainer.settings.environment import Environment

_STORE_REQUEST_SECONDS = 10.0
"""A store that takes longer to answer a request is gone, or something else listens there."""
_LOOK_SECONDS = 1.0
"""Between looks at who is missing, which is a question for each rank."""
_ROUND = "round"
"""The key of what rank 0 says of the present round."""
_OWN_STORE = "localhost"
"""Rank 0's pod is not to look for itself by name: for a while, DNS names the one it replaces."""


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
    job_uid: str
    attempt: int
    world_size: int
    backend: str


class Rendezvous:
    """Where one rank meets the others; rank 0's holds the store."""

    def __init__(self, environment: Environment, announced: AnnouncedAddress | None = None) -> None:
        """`announced`: where rank 0's pod, or its successor, says that it is."""
        self._environment = environment
        self._announced = announced
        self._announcer = Announcer(environment.placement)
        self._resolver = Resolver()
        self._server: TCPStore | None = None
        self._round = 0
        """The newest one, of rank 0's store."""
        self._address: str | None = None
        """Of this pod, where it is rank 0's: asked for once, so that it needs no DNS ever after."""
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
        wait = Wait(timeout_seconds, told_to_stop)
        attempt = self._try_to_host if self._environment.rank == 0 else self._try_to_join
        membership = retry(lambda: attempt(wait), wait)
        self._is_new = False
        return membership

    def _try_to_host(self, wait: Wait) -> Membership:
        """Hold the store, and declare the group when all ranks have registered with it."""
        placement = self._environment.placement
        port = placement.master_port
        address = self._own_address()
        if self._server is None:
            self._server = _listen(port)
            self._server.set("identity", json.dumps(asdict(_identity(self._environment))))
        store = self._server
        connections = Connections()
        # The group's waits are on a connection that can be cut without harm to the store.
        try:
            root = _client(_OWN_STORE, port, timedelta(seconds=_STORE_REQUEST_SECONDS))
        except DistNetworkError as error:  # for instance when this process was frozen meanwhile
            raise NotYetError(f"rank 0 does not reach its own store: {reason(error)}") from error
        self._round += 1
        number = self._round
        store.set(_ROUND, json.dumps({"number": number}))
        _register(store, 0, number=number, is_new=False)
        self._wait_for_all(store, number, wait)
        name = secrets.token_hex(8)
        newcomers = _newcomers(store, number=number)  # before the ranks, so that none is missed
        members = [_count(store, rank, number=number) for rank in range(placement.world_size)]
        declared = {"number": number, "group": name, "members": members, "newcomers": newcomers}
        store.set(_ROUND, json.dumps(declared))
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

    def _wait_for_all(self, store: Store, number: int, wait: Wait) -> None:
        """Wait until each rank has registered in a round."""
        placement = self._environment.placement
        missing, look_at = list(range(1, placement.world_size)), 0.0
        while missing:
            # One question for all ranks, whose names are needed only now and then.
            are_enough = _all_registrations(store, number=number) >= placement.world_size
            if are_enough or time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_SECONDS
                missing = [
                    rank
                    for rank in missing
                    if not store.check([_registrations_key(rank, number=number)])
                ]
                self._announcer.tell(sorted({placement.node_rank_of(rank) for rank in missing}))
            if missing:
                wait.pause(f"rank 0 waits for {_some_ranks(missing)} of {placement.world_size}")

    def _try_to_join(self, wait: Wait) -> Membership:
        """Join the first store of the job that answers, wherever rank 0 may be."""
        if self._environment.placement.node_rank == 0:
            return self._join(_OWN_STORE, self._own_address(), wait)
        refusal: NotYetError | None = None
        for address in self._known_addresses():
            try:
                return self._join(address, address, wait)
            except NotYetError as error:
                refusal = error
        assert refusal is not None  # names without an address do not resolve
        raise refusal

    def _known_addresses(self) -> Iterator[str]:
        """Where rank 0 may be: what it says itself comes before what DNS remembers of it."""
        announced = self._announced.read() if self._announced is not None else None
        if announced is not None:
            yield announced
        placement = self._environment.placement
        resolved = self._resolver.resolve(placement.master_addr, placement.master_port)
        yield from (address for address in resolved if address != announced)

    def _own_address(self) -> str:
        """An address of rank 0's pod, in this pod."""
        placement = self._environment.placement
        if self._address is None:
            try:
                found = self._resolver.resolve(placement.master_addr, placement.master_port)
            except NotYetError:
                # The kubelet writes each pod's hostname into its /etc/hosts.
                found = self._resolver.resolve(socket.gethostname(), placement.master_port)
            self._address = found[0]
        return self._address

    def _join(self, store_address: str, address: str, wait: Wait) -> Membership:
        """Register with a store, and see whether its group counts this rank."""
        placement, rank = self._environment.placement, self._environment.rank
        expect_answer(placement.master_addr, store_address, placement.master_port)
        connections = Connections()
        try:
            with connections.cut_unless_done_within(_STORE_REQUEST_SECONDS):
                store = _client(
                    store_address, placement.master_port, timedelta(seconds=_STORE_REQUEST_SECONDS)
                )
                self._compare(json.loads(store.get("identity")))
                number = json.loads(store.get(_ROUND))["number"]
                registration = _register(store, rank, number=number, is_new=self._is_new)
            while True:
                with connections.cut_unless_done_within(_STORE_REQUEST_SECONDS):
                    declared = json.loads(store.get(_ROUND))
                if declared["number"] != number:
                    raise NotYetError("rank 0 has begun another round")
                if "group" in declared:
                    break
                wait.pause(f"rank 0 at {placement.master_addr} waits for the other ranks")
        except (DistNetworkError, DistStoreError) as error:
            raise NotYetError(f"rank 0's store went away: {reason(error)}") from error
        if declared["members"][rank] != registration:
            # It counted this rank's predecessor, and is about to break for want of it.
            raise NotYetError("rank 0 has not left its old group yet")
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
        if replace(theirs, world_size=ours.world_size, backend=ours.backend) != ours:
            placement = self._environment.placement
            which = "" if theirs.job_uid == ours.job_uid else "an earlier job "
            raise NotYetError(
                f"{placement.master_addr} port {placement.master_port} still belongs to attempt "
                f"{theirs.attempt} of {which}{theirs.job_name}"
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
        job_uid=placement.job_uid,
        attempt=placement.attempt,
        world_size=placement.world_size,
        backend=placement.backend,
    )


def _listen(port: int) -> TCPStore:
    try:
        return TCPStore(_OWN_STORE, port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        raise NotYetError(f"rank 0 cannot listen on MASTER_PORT {port}: {reason(error)}") from error


def _client(address: str, port: int, timeout: timedelta) -> TCPStore:
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)


def _register(store: Store, rank: int, *, number: int, is_new: bool) -> int:
    if is_new:  # first, so that whoever is counted has been announced
        store.add(_newcomers_key(number), 1)
    registrations = int(store.add(_registrations_key(rank, number=number), 1))
    store.add(_all_registrations_key(number), 1)
    return registrations


def _all_registrations(store: Store, *, number: int) -> int:
    return int(store.add(_all_registrations_key(number), 0))


def _count(store: Store, rank: int, *, number: int) -> int:
    return int(store.add(_registrations_key(rank, number=number), 0))


def _newcomers(store: Store, *, number: int) -> int:
    return int(store.add(_newcomers_key(number), 0))


def _newcomers_key(number: int) -> str:
    return f"newcomers/{number}"


def _all_registrations_key(number: int) -> str:
    return f"registrations/{number}"


def _registrations_key(rank: int, *, number: int) -> str:
    return f"registrations/{number}/{rank}"


def _some_ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', …' if len(ranks) > 8 else ''}"
