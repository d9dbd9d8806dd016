"""Names the rank that a hanging job waits for, from the dumps of its flight recorders.

A rank waits in the first operation of a group that it has entered and not completed. It waits for
the members that have not entered it. These may wait themselves, in another group, so the waits
form a graph: the ranks at its ends wait for nobody, and everybody for them. A rank is named only
if the dumps show it; what they do not show is listed as such.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ddp_operator.views.traces.dump import Dump, Op
from ddp_operator.views.traces.progress import GroupProgress, progress
from ddp_operator.views.traces.waits import (
    Collective,
    Wait,
    collective_of,
    collective_waits,
    operation_of,
    stalled_ranks,
    transfer_waits,
)

Kind = Literal[
    "missing", "alone", "mismatch", "deadlock", "incomplete", "unseen", "nobody", "no-wait"
]

_EQUAL_INPUTS: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
)
"""Collectives to which all ranks must give equally many elements."""


@dataclass(frozen=True)
class Finding:
    """A cause of the hang: the ranks, and the operation in which the others wait for them."""

    kind: Kind
    ranks: tuple[int, ...]
    collective: Collective | None = None
    waiting: tuple[int, ...] = ()
    """Ranks that wait in this operation."""
    others: tuple[Collective, ...] = ()
    """Of a deadlock: the further operations."""


@dataclass(frozen=True)
class Verdict:
    """The answer of the dumps."""

    findings: tuple[Finding, ...]
    dumps: tuple[int, ...]
    """Ranks with a dump."""
    absent: tuple[int, ...]
    """Members of a group without one."""
    older: tuple[int, ...]
    """Ranks with a dump older than the others': it cannot show where they are now."""
    stalled: Mapping[int, Collective]
    """Ranks that recorded no completion of a collective that their peers completed."""
    waiting: tuple[int, ...]
    """Ranks that wait in any operation."""
    last: Mapping[int, Op]
    """The last operation that each named rank entered, if its dump shows one."""
    descriptions: Mapping[str, str]
    """The groups' descriptions by name."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the named ranks."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.ranks}))


Graph = dict[int, set[int]]


def analyse(dumps: Mapping[int, Dump]) -> Verdict:
    """Name the rank that the job waits for, from the dumps by rank."""
    groups = progress(dumps)
    older = {rank for group in groups for rank in group.trailing}
    shown = dumps.keys() - older
    stalled = stalled_ranks(groups, shown)
    waits = list(collective_waits(groups, shown, stalled))
    transfers = list(transfer_waits(groups, dumps, shown, stalled))
    findings = _mismatch(groups, waits) or _ends(waits, transfers, {*stalled})
    if all(finding.kind == "unseen" for finding in findings):
        # A device that has stopped is evidence; a dump that is absent is none.
        findings = _incomplete(stalled) + findings
    findings = findings or _nobody(waits) or [Finding("no-wait", ())]
    named = {rank for finding in findings for rank in finding.ranks}
    last = {rank: dumps[rank].ops[-1] for rank in sorted(named & shown) if dumps[rank].ops}
    members = {rank for group in groups for rank in group.ranks}
    return Verdict(
        tuple(findings),
        dumps=tuple(sorted(dumps)),
        absent=tuple(sorted(members - dumps.keys())),
        older=tuple(sorted(older)),
        stalled=stalled,
        waiting=tuple(sorted({wait.rank for wait in (*waits, *transfers)})),
        last=last,
        descriptions={group.name: group.description for group in groups},
    )


def _mismatch(groups: Iterable[GroupProgress], waits: Iterable[Wait]) -> list[Finding]:
    """Return the first collective that ranks entered with different operations, types or sizes."""
    until: dict[int, int] = {}
    for wait in waits:
        until[id(wait.group)] = max(until.get(id(wait.group), -1), wait.op.seq)
    found: list[tuple[int, Finding]] = []
    for group in groups:
        last = until.get(id(group), -1)
        for seq in sorted({seq for ops in group.collectives.values() for seq in ops}):
            if seq > last:
                break
            by_rank = group.operations(seq)
            kinds: dict[object, list[int]] = defaultdict(list)
            for rank, op in by_rank.items():
                kinds[_signature(op)].append(rank)
            if len(kinds) > 1:
                named = _minority(list(kinds.values()))
                collective = collective_of(group, seq)
                ranks = tuple(sorted(by_rank))
                waiting = tuple(rank for rank in ranks if rank not in named)
                finding = Finding("mismatch", tuple(sorted(named)), collective, waiting)
                found.append((collective.since_ns, finding))
                break
    return [min(found, key=lambda each: each[0])[1]] if found else []


def _signature(op: Op) -> object:
    """Return what must be equal on all ranks."""
    if op.name not in _EQUAL_INPUTS:
        return op.name
    return op.name, op.dtypes, sum(map(_elements, op.inputs))


def _elements(sizes: Iterable[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _minority(parts: list[list[int]]) -> set[int]:
    """Return the ranks that differ from the majority; all, if there is none."""
    largest = max(parts, key=len)
    everyone = {rank for part in parts for rank in part}
    return everyone - set(largest) if 2 * len(largest) > len(everyone) else everyone


def _ends(waits: list[Wait], transfers: list[Wait], stalled: set[int]) -> list[Finding]:
    """Return the ranks at the ends of the waits, or those of a deadlock."""
    receives = [wait for wait in transfers if wait.op.name == "recv"]
    for used in (waits, receives, transfers):
        graph = _graph(used)
        if not graph:
            continue
        ends = _leaves(graph)
        if not ends:
            return [_deadlock(used, graph)]
        if used is waits:
            ends = _behind(ends, _graph([*waits, *receives]))
        # A rank in an operation that all have entered is not to blame, even if others wait for it.
        alike = [wait for wait in waits if wait.rank in ends and not wait.blockers]
        stopped = stalled.union(*(wait.idle for wait in waits))
        ends -= {wait.rank for wait in alike} - stopped
        if not ends:
            return _nobody(alike)
        by_operation: dict[tuple[object, Kind], tuple[Wait, set[int]]] = {}
        for rank in sorted(ends):
            candidates = [wait for wait in used if rank in wait.blockers]
            candidates = candidates or [wait for wait in receives if rank in wait.blockers]
            wait = _first(candidates)
            kind = _kind(wait, rank)
            by_operation.setdefault((wait.where, kind), (wait, set()))[1].add(rank)
        every = [*waits, *transfers]
        found = [
            _finding(kind, ranks, wait, every) for (_, kind), (wait, ranks) in by_operation.items()
        ]
        # What a dump shows outweighs what is only absent.
        if any(finding.kind != "unseen" for finding in found):
            found = [finding for finding in found if finding.kind != "unseen"]
        return sorted(
            found, key=lambda finding: (finding.kind == "incomplete", -len(finding.waiting))
        )
    return []


def _graph(waits: Iterable[Wait]) -> Graph:
    graph: Graph = defaultdict(set)
    for wait in waits:
        if wait.blockers:
            graph[wait.rank] |= wait.blockers
    return dict(graph)


def _leaves(graph: Graph) -> set[int]:
    return {rank for blockers in graph.values() for rank in blockers} - graph.keys()


def _reach(rank: int, graph: Graph) -> set[int]:
    """Return the ranks that a rank waits for, directly or not."""
    found: set[int] = set()
    rest = [rank]
    while rest:
        new = graph.get(rest.pop(), set()) - found
        found |= new
        rest += new
    return found


def _behind(ends: set[int], with_receives: Graph) -> set[int]:
    """Follow the receives of ranks that wait in no collective, unless they lead back."""
    found = set()
    for rank in ends:
        reached = _reach(rank, with_receives) if rank in with_receives else set()
        further = reached - with_receives.keys()
        found |= further if rank not in reached and further else {rank}
    return found


def _first(waits: list[Wait]) -> Wait:
    """Return the operation that the missing rank should have entered first.

    The order in which another rank entered two operations counts more than the time, since clocks
    of nodes differ.
    """
    best = min(waits, key=lambda wait: wait.op.created_ns)
    records = {(wait.where, wait.rank): wait.op.record for wait in waits}
    for _ in waits:
        earlier = [
            wait
            for wait in waits
            if wait.rank in best.missing
            or wait.op.record < records.get((best.where, wait.rank), -1)
        ]
        if not earlier:
            break
        best = min(earlier, key=lambda wait: wait.op.created_ns)
    return best


def _kind(wait: Wait, rank: int) -> Kind:
    if rank in wait.missing:
        return "missing"
    return "unseen" if rank in wait.unknown else "incomplete"


def _finding(kind: Kind, ranks: set[int], wait: Wait, every: Iterable[Wait]) -> Finding:
    every = list(every)
    waiting = {each.rank for each in every if each.where == wait.where}
    if wait.op.is_p2p:
        collective = operation_of(wait, {wait.rank: wait.op})
        return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))
    collective = collective_of(wait.group, wait.op.seq)
    blocked = {each.rank for each in every if each.blockers & ranks}
    # A few ranks that entered an extra collective look like many that left one out.
    few = kind == "missing" and len(ranks) > 1 and 4 * len(waiting) <= len(wait.group.ranks)
    if few and len(waiting) < len(ranks) and blocked <= waiting:
        return Finding("alone", tuple(sorted(waiting)), collective, tuple(sorted(ranks)))
    return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))


def _deadlock(waits: list[Wait], graph: Graph) -> Finding:
    """Return the finding for ranks that wait for each other."""
    backward: Graph = defaultdict(set)
    for rank, blockers in graph.items():
        for blocker in blockers:
            backward[blocker].add(rank)
    start, seen = next(iter(graph)), set[int]()
    for rank in graph:
        if rank not in seen:
            # The last start cannot leave its cycle: a rank that it waits for would have found it.
            start = rank
            seen |= {rank} | _reach(rank, backward)
    cycle = _reach(start, graph)
    inside = [wait for wait in waits if wait.rank in cycle and wait.blockers & cycle]
    parts: dict[object, list[Wait]] = defaultdict(list)
    for wait in inside:
        parts[wait.where].append(wait)
    named = _minority([[wait.rank for wait in part] for part in parts.values()])
    operations = [
        operation_of(part[0], {wait.rank: wait.op for wait in part})
        for part in sorted(parts.values(), key=len)
    ]
    return Finding(
        "deadlock",
        tuple(sorted(named)),
        operations[0],
        tuple(sorted(cycle)),
        others=tuple(operations[1:]),
    )


def _incomplete(stalled: Mapping[int, Collective]) -> list[Finding]:
    """Return the ranks with a device that stopped, where all entered all collectives."""
    by_collective: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, collective in stalled.items():
        by_collective[collective.group, collective.seq].append(rank)
    return [
        Finding("incomplete", tuple(sorted(ranks)), stalled[ranks[0]])
        for ranks in by_collective.values()
    ]


def _nobody(waits: list[Wait]) -> list[Finding]:
    """Return the first collective that all have entered and that completes nowhere."""
    if not waits:
        return []
    wait = min(waits, key=lambda each: each.op.created_ns)
    collective = collective_of(wait.group, wait.op.seq)
    return [Finding("nobody", (), collective, tuple(sorted(collective.by_rank)))]
