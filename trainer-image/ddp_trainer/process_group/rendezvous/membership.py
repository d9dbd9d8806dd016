"""What a rank knows of a group that it is in."""

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
    """The store of the job, which outlives its groups."""
    address: str
    """Numeric address of rank 0; in its own pod perhaps that of its predecessor."""
    store_address: str
    """Where this rank reaches the store."""
    port: int
    name: str
    """Of this group, and of no other of the job."""
    connections: Connections
    """The sockets of the store and of the group in this process."""
    rank: int
    """Of this process, in this group."""
    size: int
    """Processes in the group."""
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
        return replace(self, root=stores.client(self.store_address, self.port, timeout))

    def has_successor(self) -> bool:
        """Whether a new process has come since, in the place of a member that must be dead."""
        return stores.newcomers(self.root, number=self.number) != self.newcomers
