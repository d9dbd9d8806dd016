"""The graph of waits: which ranks each rank waits for."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ddp_operator.hang.traces.effort import Effort
from ddp_operator.hang.traces.waits import Wait

_T = TypeVar("_T")
Graph = Mapping[int, Sequence[frozenset[int]]]
"""The sets of ranks that a rank waits for. Many ranks share a set, which may contain the rank
itself: without sharing, a thousand ranks that wait for a thousand others would fill the memory."""


def graph_of(waits: Iterable[Wait]) -> Graph:
    """Return the graph of these waits."""
    graph: dict[int, list[frozenset[int]]] = defaultdict(list)
    for wait in waits:
        if wait.blocked:
            graph[wait.rank].append(wait.blockers)
    return dict(graph)


def leaves(graph: Graph) -> set[int]:
    """Return the ranks that others wait for, and that wait for nobody."""
    every = {id(blockers): blockers for each in graph.values() for blockers in each}
    return set[int]().union(*every.values()) - graph.keys()


def by_set(
    pairs: Iterable[tuple[_T, frozenset[int]]],
) -> Iterable[tuple[frozenset[int], list[_T]]]:
    """Return the sets that are not empty, each once, with what belongs to it."""
    found: dict[int, tuple[frozenset[int], list[_T]]] = {}
    for value, members in pairs:
        if members:
            found.setdefault(id(members), (members, []))[1].append(value)
    return found.values()


def of_blockers(waits: Iterable[Wait], ends: set[int]) -> Mapping[int, list[list[Wait]]]:
    """Return the waits for each of these ranks, by the sets that they share."""
    found: dict[int, list[list[Wait]]] = defaultdict(list)
    pairs = ((wait, wait.blockers) for wait in waits if wait.blocked)
    for blockers, those in by_set(pairs):
        for rank in blockers & ends:
            found[rank].append(those)
    return found


def by_value(
    waits: Mapping[int, list[list[Wait]]],
) -> Iterable[tuple[list[Wait], list[int]]]:
    """Return waits with the ranks that have exactly these."""
    found: dict[tuple[int, ...], tuple[list[list[Wait]], list[int]]] = {}
    for rank, parts in waits.items():
        found.setdefault(tuple(map(id, parts)), (parts, []))[1].append(rank)
    for parts, ranks in found.values():
        yield [wait for part in parts for wait in part], ranks


def reversed_graph(graph: Graph, effort: Effort) -> Graph:
    """Return by rank which ranks wait for it."""
    backward: dict[int, list[frozenset[int]]] = defaultdict(list)
    pairs = ((rank, blockers) for rank, every in graph.items() for blockers in every)
    for blockers, ranks in by_set(pairs):
        effort.spend(len(blockers))
        waiting = frozenset(ranks)
        for blocker in blockers:
            backward[blocker].append(waiting)
    return backward


def reach(start: int, graph: Graph, effort: Effort) -> set[int]:
    """Return the ranks that a rank waits for, directly or not."""
    found: set[int] = set()
    followed: set[int] = set()
    rest = [start]
    while rest:
        rank = rest.pop()
        for blockers in graph.get(rank, ()):
            effort.spend(1)
            if rank != start and start in blockers:
                found.add(start)
            if id(blockers) not in followed:
                followed.add(id(blockers))
                effort.spend(len(blockers))
                new = blockers - found - {start}
                found |= new
                rest += new
    return found
