"""Which of a step's logical shards each rank computes.

Logical shard s of a step is what rank s would have of it, if there were as many ranks as shards.
They are dealt out one by one, like cards: rank r of W has r, r + W, r + 2 W, ... All ranks compute
as many, so that whatever a script does together in its loop it does as often on each of them. Where
there are none left, a rank computes another's once more, for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Deal:
    """One rank's part of each step."""

    shards: int
    """Of a step."""
    rank: int
    size: int
    """Ranks that share them out."""
    exact: bool = False
    """Whether gradients are summed shard by shard, in the order of shards."""

    @property
    def is_plain(self) -> bool:
        """Whether each rank's part is its own shard, and no more, as DDP has it."""
        return self.shards == self.size and not self.exact

    @property
    def slots(self) -> int:
        """Shards that each rank computes in a step, one after the other."""
        return -(-self.shards // self.size)

    def shard(self, slot: int) -> int:
        """The one that this rank computes there."""
        return (self.rank + slot * self.size) % self.shards

    def counts(self, slot: int) -> bool:
        """Whether it is this rank's own, and not another's once more."""
        return self.rank + slot * self.size < self.shards

    def whereabouts(self, shard: int) -> tuple[int, int]:
        """The rank that has a shard for its own, and the slot there."""
        return shard % self.size, shard // self.size
