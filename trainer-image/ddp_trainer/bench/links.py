"""Finds the slow rank. A collective is as slow as its slowest rank, but does not show which it is.

So ranks also exchange messages in pairs, several times with different partners. A healthy rank is
fast with at least one partner; a slow rank is slow with all.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_MAX_ROUNDS = 3
_STANDS_OUT = 0.8
"""A rank with less than this share of the median bandwidth counts as slow."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A rank of the benchmark, and its measurements."""

    rank: int
    node: str
    """The Kubernetes node from NODE_NAME, if set; otherwise the host."""
    host: str
    """In a DDPJob, the pod's host name."""
    partners: tuple[int, ...]
    """Its partners in the pairs."""
    link_gbps: float
    """GB/s in each direction with its best partner."""

    @classmethod
    def from_json(cls, text: bytes) -> Member:
        """Parse the output of `to_json` from another rank."""
        values = json.loads(text)
        return cls(**{**values, "partners": tuple(values["partners"])})

    def to_json(self) -> bytes:
        """Serialize it for the other ranks."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        host = f" (host {self.host})" if self.host != self.node else ""
        return f"rank {self.rank} on node {self.node}{host}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The link from a rank to the next one in a ring of all ranks."""

    rank: int
    node_rank: int
    to: int
    gbps: float
    """GB/s in each direction."""
    latency_us: float
    """Time of the smallest message in microseconds, sent in both directions at the same time."""

    @classmethod
    def from_json(cls, text: bytes) -> Step:
        """Parse the output of `to_json` from another rank."""
        return cls(**json.loads(text))

    def to_json(self) -> bytes:
        """Serialize it for the other ranks."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return (
            f"(node rank {self.node_rank}) to rank {self.to}: {self.gbps:.3f} GB/s each way, "
            f"{self.latency_us:.1f} us"
        )


def neighbours(rank: int, ranks: int) -> list[int | None]:
    """Return the partner in the ring for each round; None: this rank pauses.

    Each rank has at most one partner per round. After all rounds, it has had both neighbours.
    """
    if ranks == 2:
        return [1 - rank]
    last = ranks - 1
    rounds: list[int | None] = []
    for odd in (0, 1):
        other = rank + 1 if rank % 2 == odd else rank - 1
        if ranks % 2:  # the last pair gets its own round
            rounds.append(other if 0 <= other <= last else None)
        else:
            rounds.append(other % ranks)
    if ranks % 2:
        rounds.append({0: last, last: 0}.get(rank))
    return rounds


def partners(rank: int, *, nodes: int, local_world_size: int) -> list[int | None]:
    """Return the partner for each round; None: this rank pauses.

    With several nodes, partners are ranks of the same index on different nodes, since the links
    between nodes differ. On a single node, they are its ranks. Each rank has at most one partner
    per round, and never the same one twice.
    """
    if nodes > 1:
        node, index = divmod(rank, local_world_size)
        return [
            None if other is None else other * local_world_size + index
            for other in _opponents(node, nodes)
        ]
    return _opponents(rank, local_world_size)


def _opponents(player: int, players: int) -> list[int | None]:
    """Pair players as in a round-robin tournament by the circle method.

    The last player stays; the others rotate around it.
    """
    places = players + players % 2  # with an odd number, the partner of the empty place pauses
    moving = places - 1
    opponents: list[int | None] = []
    for turn in range(min(moving, _MAX_ROUNDS)):
        if player == moving:
            # The player that would meet itself: twice its number equals `turn`, modulo `moving`.
            other = turn * ((moving + 1) // 2) % moving
        else:
            other = (turn - player) % moving
            other = moving if other == player else other
        opponents.append(other if other < players else None)
    return opponents


def accuse(members: Sequence[Member]) -> str:
    """Name the slowest rank, and say how certain that is."""
    slowest = min(members, key=lambda member: member.link_gbps)
    median = statistics.median(member.link_gbps for member in members)
    speed = f"{slowest.link_gbps:.3g} GB/s each way, the median rank {median:.3g} GB/s"
    if all(len(member.partners) == 1 for member in members):
        other = next(member for member in members if member.rank in slowest.partners)
        return (
            f"slowest link: {slowest} with {other}, {speed}; to find out which end is slow, add a "
            "third node or rank"
        )
    if slowest.link_gbps >= _STANDS_OUT * median:
        return f"no rank stands out: {slowest} is the slowest, with {speed}"
    return f"slow: {slowest}; with its best partner {speed}"
