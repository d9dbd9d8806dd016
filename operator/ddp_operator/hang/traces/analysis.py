"""Names the rank that a hanging job waits for, from the dumps of its flight recorders.

A rank waits in the first operation of a group that it has entered and not completed. It waits for
the members that have not entered it. These may wait themselves, in another group, so the waits
form a graph: the ranks at its ends wait for nobody, and everybody for them. A rank is named only
if the dumps show it; what they do not show is listed as such.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from ddp_operator.hang.traces.effort import Effort
from ddp_operator.hang.traces.findings import Finding, Kind, TraceAnalysis
from ddp_operator.hang.traces.graph import (
    Graph,
    by_set,
    by_value,
    graph_of,
    leaves,
    of_blockers,
    reach,
    reversed_graph,
)
from ddp_operator.hang.traces.progress import GroupProgress, progress
from ddp_operator.hang.traces.records import Dump, Op
from ddp_operator.hang.traces.waits import (
    Collective,
    Wait,
    collective_of,
    collective_waits,
    operation_of,
    stalled_ranks,
    transfer_waits,
)

_EQUAL_INPUTS: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
)
"""Collectives to which all ranks must give equally many elements."""


def analyse(dumps: Mapping[int, Dump]) -> TraceAnalysis:
    """Name the rank that the job waits for, from the dumps by rank.

    Raises:
        TooMuchEffortError: the dumps are too complex.
    """
    effort = Effort()
    groups = progress(dumps, effort)
    older = {rank for group in groups for rank in group.trailing}
    shown = dumps.keys() - older
    stalled = stalled_ranks(groups, shown)
    waits = list(collective_waits(groups, shown, stalled, effort))
    transfers = list(transfer_waits(groups, dumps, shown, stalled, effort))
    findings = _mismatch(groups, waits) or _Ends(waits, transfers, {*stalled}, effort).find()
    if all(finding.kind == "unseen" for finding in findings):
        # A device that has stopped is evidence; a dump that is absent is none.
        findings = _incomplete(stalled) + findings
    findings = findings or _nobody(waits) or [Finding("no-wait", ())]
    named = {rank for finding in findings for rank in finding.ranks}
    ends = ((rank, dumps[rank].last, dumps[rank].at) for rank in sorted(named & shown))
    members = {rank for group in groups for rank in group.ranks}
    return TraceAnalysis(
        tuple(findings),
        dumps=tuple(sorted(dumps)),
        absent=tuple(sorted(members - dumps.keys())),
        older=tuple(sorted(older)),
        stalled=stalled,
        waiting=tuple(sorted({wait.rank for wait in (*waits, *transfers)})),
        last={rank: (*last, at) for rank, last, at in ends if last},
    )


def _mismatch(groups: Iterable[GroupProgress], waits: Iterable[Wait]) -> list[Finding]:
    """Return the first collective that ranks entered with different operations, types or sizes."""
    until: dict[int, int] = {}
    for wait in waits:
        until[id(wait.group)] = max(until.get(id(wait.group), -1), wait.op.seq)
    found: list[tuple[int, Finding]] = []
    for group in groups:
        last = until.get(id(group), -1)
        for seq in sorted(seq for seq in group.operations if seq <= last):
            by_rank = group.operations[seq]
            kinds: dict[object, list[int]] = defaultdict(list)
            for rank, op in by_rank.items():
                kinds[_signature(op)].append(rank)
            if len(kinds) > 1:
                named = _minority(list(kinds.values()))
                collective = collective_of(group, seq)
                ranks = tuple(sorted(by_rank))
                waiting = tuple(rank for rank in ranks if rank not in named)
                finding = Finding("mismatch", tuple(sorted(named)), collective, waiting)
                found.append((collective.since_us, finding))
                break
    return [min(found, key=lambda each: each[0])[1]] if found else []


def _signature(op: Op) -> object:
    """Return what must be equal on all ranks."""
    if op.name not in _EQUAL_INPUTS:
        return op.name
    return op.name, op.call.dtypes, op.call.elements


def _minority(parts: list[list[int]]) -> set[int]:
    """Return the ranks that differ from the majority; all, if there is none."""
    largest = max(parts, key=len)
    everyone = {rank for part in parts for rank in part}
    return everyone - set(largest) if 2 * len(largest) > len(everyone) else everyone


class _Ends:
    """Finds the ranks at the ends of the waits, or those of a deadlock."""

    def __init__(
        self, waits: list[Wait], transfers: list[Wait], stalled: set[int], effort: Effort
    ) -> None:
        self._waits = waits
        self._transfers = transfers
        self._receives = [wait for wait in transfers if wait.op.name == "recv"]
        self._stalled = stalled
        self._effort = effort
        self._at: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
        for wait in (*waits, *transfers):
            self._at[wait.where].append(wait)

    def find(self) -> list[Finding]:
        """Return the findings; none if no rank waits for another."""
        for used in (self._waits, self._receives, self._transfers):
            graph = graph_of(used)
            if not graph:
                continue
            ends = leaves(graph)
            if not ends:
                return [self._deadlock(used, graph)]
            if used is self._waits:
                ends = self._behind(ends)
            # A rank in an operation that all have entered is not to blame, even if others wait for
            # it.
            alike = [wait for wait in self._waits if wait.rank in ends and not wait.blocked]
            ends -= {wait.rank for wait in alike} - self._stalled - self._idle()
            return self._findings(used, ends) if ends else _nobody(alike)
        return []

    def _idle(self) -> set[int]:
        """Return the ranks with an idle device in an operation in which others wait, too."""
        found: set[int] = set()
        for idle, waits in by_set((wait, wait.idle) for wait in self._waits):
            found |= idle - ({waits[0].rank} if len(waits) == 1 else set())
        return found

    def _behind(self, ends: set[int]) -> set[int]:
        """Follow the receives of ranks that wait in no collective, unless they lead back."""
        graph = graph_of([*self._waits, *self._receives])
        found = set()
        for rank in ends:
            reached = reach(rank, graph, self._effort) if rank in graph else set()
            further = reached - graph.keys()
            found |= further if rank not in reached and further else {rank}
        return found

    def _findings(self, used: list[Wait], ends: set[int]) -> list[Finding]:
        by_operation: dict[tuple[object, Kind], tuple[Wait, set[int]]] = {}
        candidates, of_receives = of_blockers(used, ends), of_blockers(self._receives, ends)
        # Many ranks are missing in the same operations.
        for waits, ranks in by_value(
            {rank: candidates.get(rank) or of_receives[rank] for rank in sorted(ends)}
        ):
            wait = self._first(waits)
            for rank in ranks:
                kind = _kind(wait, rank)
                by_operation.setdefault((wait.where, kind), (wait, set()))[1].add(rank)
        found = [
            self._finding(kind, ranks, wait) for (_, kind), (wait, ranks) in by_operation.items()
        ]
        # What a dump shows outweighs what is only absent.
        if any(finding.kind != "unseen" for finding in found):
            found = [finding for finding in found if finding.kind != "unseen"]
        return sorted(
            found, key=lambda finding: (finding.kind == "incomplete", -len(finding.waiting))
        )

    def _first(self, waits: list[Wait]) -> Wait:
        """Return the operation that the missing rank should have entered first.

        The order in which another rank entered two operations counts more than the time, since
        clocks of nodes differ.
        """
        self._effort.spend(len(waits))
        best = min(waits, key=lambda wait: wait.op.created_us)
        records = {(wait.where, wait.rank): wait.op.record for wait in waits}
        for _ in waits:
            self._effort.spend(len(waits))
            earlier = [
                wait
                for wait in waits
                if wait.rank in best.missing
                or wait.op.record < records.get((best.where, wait.rank), -1)
            ]
            if not earlier:
                break
            best = min(earlier, key=lambda wait: wait.op.created_us)
        return best

    def _finding(self, kind: Kind, ranks: set[int], wait: Wait) -> Finding:
        waiting = {each.rank for each in self._at[wait.where]}
        if wait.op.is_p2p:
            collective = operation_of(wait, {wait.rank: wait.op})
            return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))
        collective = collective_of(wait.group, wait.op.seq)
        # A few ranks that entered an extra collective look like many that left one out.
        few = kind == "missing" and len(ranks) > 1 and 4 * len(waiting) <= len(wait.group.ranks)
        if few and len(waiting) < len(ranks) and self._blocked_by(ranks) <= waiting:
            return Finding("alone", tuple(sorted(waiting)), collective, tuple(sorted(ranks)))
        return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))

    def _blocked_by(self, ranks: set[int]) -> set[int]:
        found: set[int] = set()
        for blockers, waits in by_set(
            (wait, wait.blockers) for wait in (*self._waits, *self._transfers)
        ):
            self._effort.spend(min(len(blockers), len(ranks)) + len(waits))
            if not blockers.isdisjoint(ranks):
                found |= {wait.rank for wait in waits}
        return found

    def _deadlock(self, waits: list[Wait], graph: Graph) -> Finding:
        """Return the finding for ranks that wait for each other."""
        backward = reversed_graph(graph, self._effort)
        start, seen = next(iter(graph)), set[int]()
        for rank in graph:
            if rank not in seen:
                # The last start cannot leave its cycle: a rank that it waits for would have found
                # it.
                start = rank
                seen |= {rank} | reach(rank, backward, self._effort)
        cycle = reach(start, graph, self._effort)
        parts: dict[object, list[Wait]] = defaultdict(list)
        for blockers, those in by_set((wait, wait.blockers) for wait in waits):
            for wait in those if blockers & cycle else ():
                if wait.rank in cycle and wait.blocked:
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


def _kind(wait: Wait, rank: int) -> Kind:
    if rank in wait.missing:
        return "missing"
    return "unseen" if rank in wait.unknown else "incomplete"


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
    wait = min(waits, key=lambda each: each.op.created_us)
    collective = collective_of(wait.group, wait.op.seq)
    return [Finding("nobody", (), collective, tuple(sorted(collective.by_rank)))]
