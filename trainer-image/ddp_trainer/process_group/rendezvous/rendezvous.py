"""How ranks find each other and agree on the members of the group.

Rank 0 hosts a TCP store at the job's name and port for as long as its process lives. Nothing is
certain when a rank arrives: the name may not resolve yet, the port may be closed, or the store may
still hold a group that is breaking. So each group forms in a numbered round: each rank registers in
it, and only the registrations that rank 0 counts form the group. A rank that was not counted tries
again until the deadline, with the next round or the next store.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store

from ddp_trainer.exit_codes import ConfigurationError, MovedError
from ddp_trainer.process_group.assignment import AssignmentFile
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.process_group.failures import reason
from ddp_trainer.process_group.rendezvous import stores
from ddp_trainer.process_group.rendezvous.announcement import AnnouncedAddress, Announcer
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.rendezvous.network import Resolver, expect_answer
from ddp_trainer.process_group.rendezvous.retry import NotYetError, Wait, retry
from ddp_trainer.process_group.sockets import Connections
from ddp_trainer.settings.environment import Environment

_LOOK_SECONDS = 1.0
"""Time between checks for missing ranks; a check takes one request for each rank."""
_FIRST_PROBE_SECONDS = 1.0
_PROBE_SECONDS = 2.0
"""Time between checks that the store still listens while a request waits for its answer. Long,
because such checks keep the store of thousands of ranks busy."""
_TOLD_SECONDS = 2.0
"""Time for an announced rank 0 to listen. Until then ranks do not try the addresses from DNS, where
no process answers, or a former rank 0 that does not know yet that it has been replaced."""
_ROUND = "round"
"""Key under which rank 0 describes the present round."""


@dataclass(frozen=True, kw_only=True)
class _Identity:
    """Values that all ranks of one group must share."""

    job_name: str
    job_uid: str
    attempt: int
    generation: int
    world_size: int
    backend: str


class Rendezvous:
    """The rendezvous of one rank with the others; that of rank 0 hosts the store."""

    def __init__(
        self,
        environment: Environment,
        announced: AnnouncedAddress | None = None,
        assignments: AssignmentFile | None = None,
    ) -> None:
        """`announced`: the address that rank 0's pod, or its replacement, has announced.

        `assignments`: the file in which newer assignments of this pod arrive.
        """
        self.current_assignment = CurrentAssignment(environment, assignments)
        self._announced = announced
        self._announcer = Announcer(environment.placement)
        self._resolver = Resolver()
        self._server: TCPStore | None = None
        self._round = 0
        """Number of the newest round in rank 0's store."""
        self._address: str | None = None
        """Address of this pod if it is rank 0's; resolved once, so that DNS is not needed again."""
        self._is_new = True

    def meet(
        self, *, timeout_seconds: float, told_to_stop: Callable[[], bool] = lambda: False
    ) -> Membership:
        """Wait until all ranks of the job have registered; may be called again for the next group.

        Raises:
            RendezvousTimeoutError: ranks were missing at the deadline; the message names them.
            StoppedError: `told_to_stop` returned True.
            LeftError: this pod is no longer in the group.
            ConfigurationError: the ranks have different world sizes or backends.
        """
        while True:
            wait = Wait(timeout_seconds, told_to_stop, is_vain=self.current_assignment.is_outdated)
            try:
                membership = retry(partial(self._try, wait), wait)
            except MovedError:
                continue  # wait for the ranks of the new assignment, with the full timeout
            self._is_new = False
            return membership

    @property
    def _environment(self) -> Environment:
        return self.current_assignment.environment

    def _try(self, wait: Wait) -> Membership:
        """Try once with the newest assignment; release what belongs to an older one."""
        before = self._environment.placement.generation
        self.current_assignment.follow()
        if self._environment.placement.generation != before:
            self._address = None
        if self._environment.rank != 0:
            self._server = None  # it stops listening, so ranks that wait there look elsewhere
            return self._try_to_join(wait)
        return self._try_to_host(wait)

    def _try_to_host(self, wait: Wait) -> Membership:
        """Host the store, and declare the group when all ranks have registered."""
        placement = self._environment.placement
        port = placement.master_port
        address = self._own_address()
        if self._server is None:
            self._server = stores.listen(port)
        store = self._server
        connections = Connections(port)
        # A separate connection for the group's waits: it can be cut without harm to the store.
        try:
            root = stores.client(
                stores.OWN_ADDRESS, port, timedelta(seconds=stores.REQUEST_SECONDS)
            )
        except DistNetworkError as error:  # for instance when this process was frozen meanwhile
            raise NotYetError(f"rank 0 cannot reach its own store: {reason(error)}") from error
        self._round += 1
        number = self._round
        # In one key: a rank that has read the identity registers in that round only.
        begun = {"number": number, "identity": asdict(_identity(self._environment))}
        store.set(_ROUND, json.dumps(begun))
        stores.register(store, 0, number=number, is_new=False)
        self._wait_for_all(store, number, wait)
        name = secrets.token_hex(8)
        # Read before the counts of the ranks, so that no newcomer is missed.
        newcomers = stores.newcomers(store, number=number)
        members = [stores.count(store, rank, number=number) for rank in range(placement.world_size)]
        declared = {**begun, "group": name, "members": members, "newcomers": newcomers}
        store.set(_ROUND, json.dumps(declared))
        return Membership(
            root=root,
            address=address,
            store_address=stores.OWN_ADDRESS,
            port=port,
            name=name,
            connections=connections,
            rank=0,
            size=placement.world_size,
            number=number,
            newcomers=newcomers,
        )

    def _wait_for_all(self, store: Store, number: int, wait: Wait) -> None:
        """Wait until each rank has registered in the round."""
        placement = self._environment.placement
        missing, look_at = list(range(1, placement.world_size)), 0.0
        while missing:
            # One request for the sum; the numbers of missing ranks are needed only now and then.
            are_enough = stores.all_registrations(store, number=number) >= placement.world_size
            if are_enough or time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_SECONDS
                missing = [
                    rank
                    for rank in missing
                    if not store.check([stores.registrations_key(rank, number=number)])
                ]
                self._announce({placement.node_rank_of(rank) for rank in missing})
            if missing:
                wait.pause(f"rank 0 waits for {_some_ranks(missing)} of {placement.world_size}")

    def _announce(self, node_ranks: Collection[int]) -> None:
        # After a change of assignments the names are unknown here; the operator informs the pods.
        if not self.current_assignment.has_moved:
            self._announcer.tell(sorted(node_ranks))

    def _try_to_join(self, wait: Wait) -> Membership:
        """Join the first store of the job that answers at a known address of rank 0."""
        if self._environment.placement.node_rank == 0:
            return self._join(stores.OWN_ADDRESS, self._own_address(), wait)
        refusal: NotYetError | None = None
        for address in self._known_addresses(wait):
            try:
                return self._join(address, address, wait)
            except NotYetError as error:
                refusal = error
        assert refusal is not None  # names without an address do not resolve
        raise refusal

    def _known_addresses(self, wait: Wait) -> Iterator[str]:
        """Return possible addresses of rank 0: announced ones first, then those from DNS."""
        placement, announced = self._environment.placement, None
        if self._announced is not None:
            announced = self._announced.read(generation=placement.generation)
        told = list(dict.fromkeys(filter(None, (announced, placement.master_address))))
        yield from told
        if told and wait.seconds < _TOLD_SECONDS:
            return
        resolved = self._resolver.resolve(placement.master_addr, placement.master_port)
        yield from (address for address in resolved if address not in told)

    def _own_address(self) -> str:
        """Return an address of this pod, which is rank 0's."""
        placement = self._environment.placement
        if placement.master_address:
            return placement.master_address
        if self._address is None:
            try:
                found = self._resolver.resolve(placement.master_addr, placement.master_port)
            except NotYetError:
                # The kubelet writes each pod's hostname into its /etc/hosts.
                found = self._resolver.resolve(socket.gethostname(), placement.master_port)
            self._address = found[0]
        return self._address

    def _join(self, store_address: str, address: str, wait: Wait) -> Membership:
        """Register with a store, and check that its group counts this rank."""
        placement, rank = self._environment.placement, self._environment.rank
        expect_answer(placement.master_addr, store_address, placement.master_port)
        connections = Connections(placement.master_port)
        try:
            with self._deadline(connections, store_address) as is_vain:
                store = stores.connected(store_address, placement.master_port, is_vain)
                begun = json.loads(store.get(_ROUND))
                self._compare(begun["identity"])
                number = begun["number"]
                registration = stores.register(store, rank, number=number, is_new=self._is_new)
            while True:
                with self._deadline(connections, store_address):
                    declared = json.loads(store.get(_ROUND))
                if declared["number"] != number:
                    raise NotYetError("rank 0 has started another round")
                if "group" in declared:
                    break
                wait.pause(
                    f"rank 0 at {placement.master_addr} waits for the other ranks",
                    ranks=placement.world_size,
                )
        except (DistNetworkError, DistStoreError) as error:
            raise NotYetError(f"rank 0's store went away: {reason(error)}") from error
        if declared["members"][rank] != registration:
            # It counted the process that this one replaces; that group will break.
            raise NotYetError("rank 0 has not left its old group yet")
        return Membership(
            root=store,
            address=address,
            store_address=store_address,
            port=placement.master_port,
            name=declared["group"],
            connections=connections,
            rank=rank,
            size=placement.world_size,
            number=number,
            newcomers=declared["newcomers"],
        )

    @contextmanager
    def _deadline(self, connections: Connections, address: str) -> Iterator[Callable[[], bool]]:
        """Limit the time of a request to a store, which may be frozen or gone."""
        placement = self._environment.placement
        look_at = time.monotonic() + _FIRST_PROBE_SECONDS

        def is_vain() -> bool:
            nonlocal look_at
            if self.current_assignment.is_outdated():
                return True
            if time.monotonic() < look_at:
                return False
            look_at = time.monotonic() + _PROBE_SECONDS
            try:
                expect_answer(placement.master_addr, address, placement.master_port)
            except NotYetError:
                return True
            return False

        with connections.cut_unless_done_within(stores.REQUEST_SECONDS, is_vain=is_vain):
            yield is_vain

    def _compare(self, identity: Mapping[str, Any]) -> None:
        theirs, ours = _Identity(**identity), _identity(self._environment)
        placement = self._environment.placement
        of_ours = replace(ours, world_size=theirs.world_size, backend=theirs.backend)
        if replace(of_ours, generation=theirs.generation) == theirs and of_ours != theirs:
            raise NotYetError(  # if rank 0's is newer, this rank will receive it too
                f"{placement.master_addr} port {placement.master_port} belongs to generation "
                f"{theirs.generation} of the group, and this rank to {ours.generation}"
            )
        if of_ours != theirs:
            which = "" if theirs.job_uid == ours.job_uid else "an earlier job "
            raise NotYetError(
                f"{placement.master_addr} port {placement.master_port} still belongs to attempt "
                f"{theirs.attempt} of {which}{theirs.job_name}"
            )
        if theirs != ours:
            raise ConfigurationError(
                f"rank 0 has WORLD_SIZE {theirs.world_size} and DDP_BACKEND {theirs.backend}, this "
                f"rank {ours.world_size} and {ours.backend}: set the same values on all ranks"
            )


def _identity(environment: Environment) -> _Identity:
    placement = environment.placement
    return _Identity(
        job_name=placement.job_name,
        job_uid=placement.job_uid,
        attempt=placement.attempt,
        generation=placement.generation,
        world_size=placement.world_size,
        backend=placement.backend,
    )


def _some_ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', …' if len(ranks) > 8 else ''}"
