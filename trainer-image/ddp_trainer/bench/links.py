"""Finds the slow rank: a collective is as slow as its slowest member, and cannot say who that is.

So ranks also talk in pairs, several times with different partners. A healthy rank is fast with at
least one of them; a slow one is slow with all.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_MAX_ROUNDS = 3
_STANDS_OUT = 0.8
"""A rank with less than this share of the median's bandwidth is called slow."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of the benchmark, and what it measured."""

    rank: int
    node: str
    """The Kubernetes node, where the environment names it as NODE_NAME, else the host."""
    host: str
    """In a DDPJob, the pod's host name."""
    partners: tuple[int, ...]
    """Ranks that it talked to in pairs."""
    link_gbps: float
    """GB/s in each direction, with the best of its partners."""

    @classmethod
    def from_json(cls, text: bytes) -> Member:
        """Read what `to_json` wrote, on another rank."""
        values = json.loads(text)
        return cls(**{**values, "partners": tuple(values["partners"])})

    def to_json(self) -> bytes:
        """For the other ranks."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        host = f" (host {self.host})" if self.host != self.node else ""
        return f"rank {self.rank} on node {self.node}{host}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The way from one rank to the next one in the ring of all of them."""

    rank: int
    node_rank: int
    to: int
    gbps: float
    """GB/s in each direction."""
    latency_us: float
    """Of the smallest message, there and back at the same time."""

    @classmethod
    def from_json(cls, text: bytes) -> Step:
        """Read what `to_json` wrote, on another rank."""
        return cls(**json.loads(text))

    def to_json(self) -> bytes:
        """For the other ranks."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return (
            f"(node rank {self.node_rank}) to rank {self.to}: {self.gbps:.3f} GB/s each way, "
            f"{self.latency_us:.1f} us"
        )


def neighbours(rank: int, ranks: int) -> list[int | None]:
    """The neighbour in the ring to talk to in each round; None: this rank pauses.

    In each round every rank has at most one partner; after all, each has talked to both.
    """
    if ranks == 2:
        return [1 - rank]
    last = ranks - 1
    rounds: list[int | None] = []
    for odd in (0, 1):
        other = rank + 1 if rank % 2 == odd else rank - 1
        if ranks % 2:  # the last pair waits for a round of its own
            rounds.append(other if 0 <= other <= last else None)
        else:
            rounds.append(other % ranks)
    if ranks % 2:
        rounds.append({0: last, last: 0}.get(rank))
    return rounds


def partners(rank: int, *, nodes: int, local_world_size: int) -> list[int | None]:
    """The rank to talk to in each round; None: this rank pauses.

    With several nodes, ranks of the same index on different nodes: their links are what differs.
    On a single node, its ranks. In each round every rank has at most one partner, and never twice
    the same one.
    """
    if nodes > 1:
        node, index = divmod(rank, local_world_size)
        return [
            None if other is None else other * local_world_size + index
            for other in _opponents(node, nodes)
        ]
    return _opponents(rank, local_world_size)


def _opponents(player: int, players: int) -> list[int | None]:
    """A tournament by the circle method: the last one stays, the others move round it."""
    places = players + players % 2  # with an odd number, whoever meets the empty place pauses
    moving = places - 1
    opponents: list[int | None] = []
    for turn in range(min(moving, _MAX_ROUNDS)):
        if player == moving:
            # Whoever would meet itself: twice its number is the turn's, modulo an odd number.
            other = turn * ((moving + 1) // 2) % moving
        else:
            other = (turn - player) % moving
            other = moving if other == player else other
        opponents.append(other if other < players else None)
    return opponents


def accuse(members: Sequence[Member]) -> str:
    """Name the slowest rank, and say how sure that is."""
    slowest = min(members, key=lambda member: member.link_gbps)
    median = statistics.median(member.link_gbps for member in members)
    speed = f"{slowest.link_gbps:.3g} GB/s each way, the median rank {median:.3g} GB/s"
    if all(len(member.partners) == 1 for member in members):
        other = next(member for member in members if member.rank in slowest.partners)
        return (
            f"slowest link: {slowest} with {other}, {speed}; which end is slow cannot be told "
            "with only two of them, add a third"
        )
    if slowest.link_gbps >= _STANDS_OUT * median:
        return f"no rank stands out: {slowest}, the slowest, exchanges {speed}"
    return f"slow: {slowest}, which exchanges with its best partner {speed}"
