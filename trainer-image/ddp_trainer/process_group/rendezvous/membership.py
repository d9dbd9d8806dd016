"""The membership of a rank in one group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from ddp_trainer.process_group.rendezvous import stores
from ddp_trainer.process_group.sockets import Connections


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A group that rank 0 has declared complete."""

    root: Store
    """The job's store, which outlives its groups."""
    address: str
    """Numeric address of rank 0; in its own pod perhaps that of the pod that it replaced."""
    store_address: str
    """Address at which this rank reaches the store."""
    port: int
    name: str
    """Name of this group, unique in the job."""
    connections: Connections
    """The sockets of the store and of the group in this process."""
    rank: int
    """Rank of this process in this group."""
    size: int
    """Processes in the group."""
    number: int
    """Number of the round in which the group was declared."""
    newcomers: int
    """New processes in this round before the group was declared."""

    @property
    def store(self) -> Store:
        """Store for keys of this group alone."""
        return PrefixStore(self.name, self.root)

    def connect(self, timeout: timedelta) -> Membership:
        """Return the same with a connection of its own, because others may be blocked in a wait."""
        return replace(self, root=stores.client(self.store_address, self.port, timeout))

    def has_successor(self) -> bool:
        """Return whether a new process has registered since; the member it replaces is dead."""
        return stores.newcomers(self.root, number=self.number) != self.newcomers
