"""Names the rank that a hanging job waits for, from the dumps of its flight recorders.

A rank waits in the first operation of a group that it has entered and not completed. It waits for
the members that have not entered it. These may wait themselves, in another group, so the waits
form a graph: the ranks at its ends wait for nobody, and everybody for them. A rank is named only
if the dumps show it; what they do not show is listed as such.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ddp_operator.views.traces.dump import Dump, Op
from ddp_operator.views.traces.progress import GroupProgress, progress

Kind = Literal[
    "missing", "alone", "mismatch", "deadlock", "incomplete", "unseen", "nobody", "no-wait"
]

_EQUAL_INPUTS: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
)
"""Collectives to which all ranks must give equally many elements."""


@dataclass(frozen=True)
class Collective:
    """An operation of a group, as the ranks that entered it show it."""

    group: str
    description: str
    seq: int
    name: str
    size: int
    """Ranks in the group."""
    is_p2p: bool = False
    by_rank: Mapping[int, Op] = field(default_factory=dict)
    """Of the ranks that show it in their dumps."""

    @property
    def since_ns(self) -> int:
        """Return when the last of them entered it, in nanoseconds of Unix time."""
        return max((op.created_ns for op in self.by_rank.values()), default=0)


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


@dataclass(frozen=True)
class _Wait:
    """A rank waits in an operation for others."""

    rank: int
    op: Op
    group: GroupProgress
    missing: frozenset[int] = frozenset()
    """Members that have not entered it."""
    unknown: frozenset[int] = frozenset()
    """Members that may have entered it: their dumps do not show it."""
    stuck: frozenset[int] = frozenset()
    """Members that entered it, but their devices did not run it."""
    idle: frozenset[int] = frozenset()
    """Members among them with a device that has not started it, though others' have."""

    @property
    def blockers(self) -> frozenset[int]:
        """Return the ranks that it waits for, as far as the dumps show."""
        return self.missing or self.unknown or self.stuck

    @property
    def where(self) -> tuple[str, tuple[int, ...], int, bool]:
        """Identify the operation; one of two ranks is identified by them."""
        ranks = self.group.ranks
        if self.op.is_p2p:
            ranks = tuple(sorted({self.rank, *self.blockers}))
        return self.group.name, ranks, 0 if self.op.is_p2p else self.op.seq, self.op.is_p2p


Graph = dict[int, set[int]]


def analyse(dumps: Mapping[int, Dump]) -> Verdict:
    """Name the rank that the job waits for, from the dumps by rank."""
    groups = progress(dumps)
    older = {rank for group in groups for rank in group.trailing}
    shown = dumps.keys() - older
    stalled = _stalled(groups, shown)
    waits = list(_collective_waits(groups, shown, stalled))
    transfers = list(_transfer_waits(groups, dumps, shown, stalled))
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


def _collective(group: GroupProgress, seq: int) -> Collective:
    by_rank = group.operations(seq)
    names = Counter(op.name for op in by_rank.values())
    name = names.most_common(1)[0][0] if names else ""
    return Collective(group.name, group.description, seq, name, len(group.ranks), by_rank=by_rank)


def _stalled(groups: Iterable[GroupProgress], shown: Iterable[int]) -> dict[int, Collective]:
    """Return ranks with records that end before a collective that others completed with them.

    They entered it and their peers completed it, so their device took part. If they never saw it
    complete, the device or the thread that watches it has stopped.
    """
    first: dict[int, tuple[int, Collective]] = {}
    for group in groups:
        for rank in shown:
            for op in group.late(rank):
                if rank not in first or op.record < first[rank][0]:
                    first[rank] = op.record, _collective(group, op.seq)
    return {rank: collective for rank, (_, collective) in sorted(first.items())}


def _collective_waits(
    groups: Iterable[GroupProgress], shown: Iterable[int], stalled: Mapping[int, Collective]
) -> Iterator[_Wait]:
    shown = set(shown)
    pending: list[tuple[int, GroupProgress, Op]] = []
    heads: dict[int, int] = {}
    for group in groups:
        for rank in shown & group.collectives.keys():
            # A stalled rank's own record ends too early: what others completed, it has run.
            last = max(group.completed.values(), default=-1) if rank in stalled else group.passed
            op = group.pending(rank, last)
            if op is not None:
                pending.append((rank, group, op))
                heads[rank] = min(op.record, heads.get(rank, op.record))
    for rank, group, op in pending:
        others = set(group.ranks) - {rank}
        late = {other for other in others & shown if group.entered.get(other, -1) < op.seq}
        known = late & group.entered.keys()
        missing = late - group.unclear if group.waits_for_all(op.seq) else known
        unknown = (others - shown) | (late - missing)
        stuck, idle = set[int](), set[int]()
        if not missing and not unknown:
            ops = group.operations(op.seq)
            stuck = others & stalled.keys()
            # A device runs its operations in order: this one waits for an earlier one of a peer.
            if op.record == heads[rank]:
                stuck |= {
                    other
                    for other in others & ops.keys()
                    if heads.get(other, ops[other].record) < ops[other].record
                }
            if any(each.started for each in ops.values()):
                idle = {other for other in others & ops.keys() if not ops[other].started}
        yield _Wait(
            rank,
            op,
            group,
            frozenset(missing),
            frozenset(unknown),
            frozenset(stuck | idle),
            frozenset(idle),
        )


def _transfer_waits(
    groups: Iterable[GroupProgress],
    dumps: Mapping[int, Dump],
    shown: Iterable[int],
    stalled: Mapping[int, Collective],
) -> Iterator[_Wait]:
    """Yield the sends and receives that the other side does not answer."""
    shown = set(shown)
    reached = {rank: _reached(rank, groups) for rank in stalled}
    for group in groups:
        open_ = {
            (rank, op.name, group.ranks[op.peer]): op
            for rank, ops in group.transfers.items()
            if rank in shown
            for op in reversed(ops)
            if _is_open(op, group, dumps[rank])
            and op.record > reached.get(rank, -1)
            and op.peer is not None
            and op.peer < len(group.ranks)
        }
        for (rank, name, peer), op in open_.items():
            if peer not in shown:
                yield _Wait(rank, op, group, unknown=frozenset({peer}))
            elif (peer, "recv" if name == "send" else "send", rank) not in open_:
                yield _Wait(rank, op, group, missing=frozenset({peer}))


def _is_open(op: Op, group: GroupProgress, dump: Dump) -> bool:
    status = dump.status.get(group.name)
    only_transfers = not any(group.collectives.values())
    return not op.done and not (
        only_transfers and status is not None and op.seq <= status.completed
    )


def _reached(rank: int, groups: Iterable[GroupProgress]) -> int:
    """Return the record of the last operation that a stalled rank's device has surely run."""
    return max(
        (
            op.record
            for group in groups
            for seq, op in group.collectives.get(rank, {}).items()
            if seq <= group.passed
        ),
        default=-1,
    )


def _mismatch(groups: Iterable[GroupProgress], waits: Iterable[_Wait]) -> list[Finding]:
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
                collective = _collective(group, seq)
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


def _ends(waits: list[_Wait], transfers: list[_Wait], stalled: set[int]) -> list[Finding]:
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
        by_operation: dict[tuple[object, Kind], tuple[_Wait, set[int]]] = {}
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


def _graph(waits: Iterable[_Wait]) -> Graph:
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


def _first(waits: list[_Wait]) -> _Wait:
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


def _kind(wait: _Wait, rank: int) -> Kind:
    if rank in wait.missing:
        return "missing"
    return "unseen" if rank in wait.unknown else "incomplete"


def _finding(kind: Kind, ranks: set[int], wait: _Wait, every: Iterable[_Wait]) -> Finding:
    every = list(every)
    waiting = {each.rank for each in every if each.where == wait.where}
    if wait.op.is_p2p:
        collective = Collective(
            wait.group.name,
            wait.group.description,
            wait.op.seq,
            wait.op.name,
            2,
            is_p2p=True,
            by_rank={wait.rank: wait.op},
        )
        return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))
    collective = _collective(wait.group, wait.op.seq)
    blocked = {each.rank for each in every if each.blockers & ranks}
    # A few ranks that entered an extra collective look like many that left one out.
    few = kind == "missing" and len(ranks) > 1 and 4 * len(waiting) <= len(wait.group.ranks)
    if few and len(waiting) < len(ranks) and blocked <= waiting:
        return Finding("alone", tuple(sorted(waiting)), collective, tuple(sorted(ranks)))
    return Finding(kind, tuple(sorted(ranks)), collective, tuple(sorted(waiting)))


def _deadlock(waits: list[_Wait], graph: Graph) -> Finding:
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
    parts: dict[object, list[_Wait]] = defaultdict(list)
    for wait in inside:
        parts[wait.where].append(wait)
    named = _minority([[wait.rank for wait in part] for part in parts.values()])
    operations = [
        Collective(
            part[0].group.name,
            part[0].group.description,
            part[0].op.seq,
            part[0].op.name,
            len(part[0].group.ranks),
            is_p2p=part[0].op.is_p2p,
            by_rank={wait.rank: wait.op for wait in part},
        )
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


def _nobody(waits: list[_Wait]) -> list[Finding]:
    """Return the first collective that all have entered and that completes nowhere."""
    if not waits:
        return []
    wait = min(waits, key=lambda each: each.op.created_ns)
    collective = _collective(wait.group, wait.op.seq)
    return [Finding("nobody", (), collective, tuple(sorted(collective.by_rank)))]
