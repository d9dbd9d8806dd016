"""Which parts of a step each rank computes.

Logical shard s of a step is what rank s would have of it, if there were as many ranks as shards. A
step is cut into equal parts, and rank r of W has parts r, r + W, r + 2 W, ... All ranks compute as
many, so that whatever a script does together in its loop it does as often on each of them. Where
the ranks divide the shards, a part is a shard; else it is smaller, so that all have as much to do.
Where the order of sums is to stay, parts are shards always: where there are none left, a rank
computes another's once more, for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ShardAssignment:
    """One rank's share of each step."""

    shards: int
    """Of a step."""
    rank: int
    size: int
    """Ranks that share them out."""
    exact: bool = False
    """Whether gradients are summed shard by shard, in the order of shards."""

    @property
    def is_plain(self) -> bool:
        """Whether each rank has its own shard, and no more, as DDP has it."""
        return self.shards == self.size and not self.exact

    @property
    def slots(self) -> int:
        """Parts that each rank computes in a step, one after the other: each fits in a shard."""
        return -(-self.shards // self.size)

    @property
    def parts(self) -> int:
        """Into which a step is cut; samples are dealt out to them one by one, like cards."""
        return self.shards if self.exact else self.slots * self.size

    def part(self, slot: int) -> int:
        """The one that this rank computes there."""
        return (self.rank + slot * self.size) % self.parts

    def counts(self, slot: int) -> bool:
        """Whether it is this rank's own, and not another's once more."""
        return self.rank + slot * self.size < self.parts

    def owner(self, part: int) -> tuple[int, int]:
        """The rank that has a part for its own, and the slot there."""
        return part % self.size, part // self.size
