"""Assigns the parts of a step to ranks.

Logical shard s of a step contains the samples that rank s would have if there were as many ranks as
shards. A step is divided into equal parts, and rank r of W computes parts r, r + W, r + 2 W, ...
All ranks compute the same number of parts, so a script calls its own collectives equally often on
each of them. A part is a shard if the number of ranks divides the number of shards. Otherwise parts
are smaller, so that all ranks have the same work. If the order of sums must not change, parts are
always shards; a rank without a shard of its own computes another one again, and it is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class ShardAssignment:
    """One rank's share of each step."""

    shards: int
    """Logical shards of a step."""
    rank: int
    size: int
    """Number of ranks."""
    exact: bool = False
    """True if gradients are summed shard by shard, in the order of shards."""

    @cached_property
    def is_plain(self) -> bool:
        """Return whether each rank has exactly one shard, as with plain DDP."""
        return self.shards == self.size and not self.exact

    @cached_property
    def slots(self) -> int:
        """Return how many parts each rank computes in a step; each fits into a shard."""
        return -(-self.shards // self.size)

    @cached_property
    def parts(self) -> int:
        """Return the number of parts of a step; samples are distributed to them one by one."""
        return self.shards if self.exact else self.slots * self.size

    def part(self, slot: int) -> int:
        """Return the part that this rank computes in a slot."""
        return (self.rank + slot * self.size) % self.parts

    def counts(self, slot: int) -> bool:
        """Return whether the part in a slot is this rank's own, not a repetition of another."""
        return self.rank + slot * self.size < self.parts

    def owner(self, part: int) -> tuple[int, int]:
        """Return the rank that owns a part, and its slot there."""
        return part % self.size, part // self.size
