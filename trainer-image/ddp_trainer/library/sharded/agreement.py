"""Decides from which step ranks continue, and who sends the state of each rank that lost it.

Where all states of a shard are equal (HSDP), a rank with the same shard replaces a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ddp_trainer.memory.volume import Key


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The snapshots that one rank holds, in its process or in the volume of its pod."""

    own: Sequence[Key]
    """Keys of its own snapshots; all in processes have generation 0."""
    copies: Sequence[tuple[int, Key]]
    """Ranks and keys of its copies of other ranks' snapshots."""
    shard: int | None = None
    """Number of its shard of the model; None: other ranks do not have the same state."""

    def all_keys(self) -> set[Key]:
        """Return the keys of all its snapshots."""
        return {*self.own, *(key for _, key in self.copies)}


@dataclass(frozen=True)
class Decision:
    """The step of all ranks, and the ranks that send snapshots of it."""

    key: Key
    senders: Mapping[int, int]
    """For each rank that needs its snapshot, a rank that has a copy, or the same state itself."""

    def __str__(self) -> str:
        """Return the first senders, for the log."""
        parts = [f"rank {rank}'s part from rank {by}" for rank, by in self.senders.items()]
        return ", ".join(parts[:8]) or "all ranks have their parts"


def newest_complete(inventories: Sequence[Inventory]) -> Decision | None:
    """Return the newest step of which every rank's snapshot exists; None: there is none."""
    for key in sorted({key for held in inventories for key in held.all_keys()}, reverse=True):
        senders = {}
        for rank, held in enumerate(inventories):
            if key in held.own:
                continue
            sender = _sender(rank, key, inventories)
            if sender is None:
                break
            senders[rank] = sender
        else:
            return Decision(key, senders)
    return None


def _sender(rank: int, key: Key, inventories: Sequence[Inventory]) -> int | None:
    """Return the first rank with a copy, otherwise the first one with the same state."""
    shard = inventories[rank].shard
    with_copy = (other for other, its in enumerate(inventories) if (rank, key) in its.copies)
    replicas = (
        other
        for other, its in enumerate(inventories)
        if shard is not None and its.shard == shard and key in its.own
    )
    return next(chain(with_copy, replicas), None)
