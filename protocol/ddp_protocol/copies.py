"""Chooses the pods that hold copies of a pod's snapshots. Pure; operator and launchers share it.

Pods of one failure domain (zone, block, sub-block, host, ...) can be lost together. The pods stand
in an order in which those of a domain are consecutive, and a copy goes a part of the way around:
half the way with one copy, a third and two thirds with two, and so on. Each pod then holds as many
copies as it makes. And whichever domain is lost, of no level can more snapshots survive: if it has
d of n pods, copies for at most (n - d) * copies of its pods fit into the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

Domain = tuple[str | None, ...]
"""The names of a pod's failure domains, from the widest level to the closest; None: unknown."""


def order_by_domain(domains: Sequence[Domain]) -> tuple[int, ...]:
    """Return node ranks in an order in which those of one domain are consecutive, at each level.

    Otherwise the order is that of the node ranks. A name may be used again in another domain of the
    wider level.

    Args:
        domains: of each node rank.
    """
    first: dict[Domain, int] = {}
    for node_rank, domain in enumerate(domains):
        for level in range(len(domain)):
            first.setdefault(domain[: level + 1], node_rank)
    return tuple(
        sorted(
            range(len(domains)),
            key=lambda node_rank: [
                first[domains[node_rank][: level + 1]] for level in range(len(domains[node_rank]))
            ],
        )
    )


@dataclass(frozen=True)
class CopyPlan:
    """The pods that hold copies, for each pod of a group, by node rank."""

    holders: Sequence[Sequence[int]]
    """The node ranks to which each pod copies its snapshots."""
    sources: Sequence[Sequence[int]]
    """Each pod holds copies for these node ranks."""


def copy_plan(order: Sequence[int], copies: int) -> CopyPlan:
    """Choose the holders of all copies.

    Args:
        order: all node ranks; those that can be lost together are consecutive.
        copies: of each snapshot; fewer if there are not enough other pods.
    """
    nodes = len(order)
    copies = max(0, min(copies, nodes - 1))
    distances = [number * nodes // (copies + 1) for number in range(1, copies + 1)]
    holders: list[list[int]] = [[] for _ in order]
    sources: list[list[int]] = [[] for _ in order]
    for place, node_rank in enumerate(order):
        for distance in distances:
            holder = order[(place + distance) % nodes]
            holders[node_rank].append(holder)
            sources[holder].append(node_rank)
    return CopyPlan(holders, sources)


def read_order(text: str, nodes: int) -> tuple[int, ...] | None:
    """Parse an order such as `0-2,5,3-4`; None: it does not have all node ranks once."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (_is_number(first) and (not last or _is_number(last)) and int(first) < nodes):
            return None
        found += range(int(first), min(int(last or first), nodes) + 1)
        if len(found) > nodes:
            return None
    return tuple(found) if sorted(found) == [*range(nodes)] else None


def fingerprint(order: str) -> str:
    """Return a short text that is another one for nearly any other order; empty for no order."""
    return f"{zlib.crc32(order.encode()):08x}" if order else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8
