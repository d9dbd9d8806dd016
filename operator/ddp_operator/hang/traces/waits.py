"""Reads from the dumps which ranks wait in which operations, and for whom."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ddp_operator.hang.traces.effort import Effort
from ddp_operator.hang.traces.progress import GroupProgress
from ddp_operator.hang.traces.records import Dump, Op

_NOBODY: frozenset[int] = frozenset()
_OF_TRANSFER: Final = 16
"""Steps for a transfer, which shares its set with no other."""


@dataclass(frozen=True)
class Collective:
    """An operation of a group, as the ranks that entered it show it."""

    group: str
    description: str
    seq: int
    name: str
    size: int
    """Ranks in the group; 2 for a send or receive."""
    is_p2p: bool = False
    by_rank: Mapping[int, Op] = field(default_factory=dict)
    """Of the ranks that show it in their dumps."""

    @property
    def since_us(self) -> int:
        """Return when the last of them entered it, in microseconds of Unix time."""
        return max((op.created_us for op in self.by_rank.values()), default=0)


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank waits in an operation for others. The ranks of one operation share their sets, which
    may contain the rank itself.
    """

    rank: int
    op: Op
    group: GroupProgress
    missing: frozenset[int] = _NOBODY
    """Members that have not entered it."""
    unknown: frozenset[int] = _NOBODY
    """Members that may have entered it: their dumps do not show it."""
    stuck: frozenset[int] = _NOBODY
    """Members that entered it, but their devices did not run it."""
    idle: frozenset[int] = _NOBODY
    """Members among them with a device that has not started it, though others' have."""

    @property
    def blockers(self) -> frozenset[int]:
        """Return the ranks that it waits for, as far as the dumps show."""
        return self.missing or self.unknown or self.stuck

    @property
    def blocked(self) -> bool:
        """Tell whether it waits for another rank."""
        return len(self.blockers) > (self.rank in self.blockers)

    @property
    def where(self) -> tuple[object, ...]:
        """Identify the operation; one of two ranks is identified by them."""
        if self.op.is_p2p:
            return self.group.name, *sorted({self.rank, *self.blockers})
        return id(self.group), self.op.seq


def collective_of(group: GroupProgress, seq: int) -> Collective:
    """Return a collective of a group, with the name that most ranks recorded."""
    by_rank = group.operations.get(seq, {})
    names = Counter(op.name for op in by_rank.values())
    name = names.most_common(1)[0][0] if names else ""
    return Collective(group.name, group.description, seq, name, len(group.ranks), by_rank=by_rank)


def operation_of(wait: Wait, by_rank: Mapping[int, Op]) -> Collective:
    """Return the operation in which a rank waits, as these ranks show it."""
    op, group = wait.op, wait.group
    return Collective(
        group.name,
        group.description,
        op.seq,
        op.name,
        2 if op.is_p2p else len(group.ranks),
        is_p2p=op.is_p2p,
        by_rank=by_rank,
    )


def stalled_ranks(groups: Iterable[GroupProgress], shown: Collection[int]) -> dict[int, Collective]:
    """Return ranks with records that end before a collective that others completed with them.

    They entered it and their peers completed it, so their device took part. If they never saw it
    complete, the device or the thread that watches it has stopped.
    """
    first: dict[int, tuple[Op, GroupProgress]] = {}
    for group in groups:
        for rank in group.collectives:
            for op in group.late(rank) if rank in shown else ():
                if rank not in first or op.record < first[rank][0].record:
                    first[rank] = op, group
    collectives: dict[tuple[int, int], Collective] = {}
    for op, group in first.values():
        if (id(group), op.seq) not in collectives:
            collectives[id(group), op.seq] = collective_of(group, op.seq)
    return {rank: collectives[id(group), op.seq] for rank, (op, group) in sorted(first.items())}


class _Others(NamedTuple):
    """The other members of a group, as seen from a collective in which ranks wait."""

    missing: frozenset[int]
    unknown: frozenset[int]
    idle: frozenset[int]
    stuck: frozenset[int]
    """Including those that are idle."""
    stuck_or_behind: frozenset[int]
    """With those that are in an earlier operation."""


def collective_waits(
    groups: Iterable[GroupProgress],
    shown: Collection[int],
    stalled: Mapping[int, Collective],
    effort: Effort,
) -> Iterator[Wait]:
    """Yield the first collective of each group that a rank entered and did not complete."""
    pending: list[tuple[int, GroupProgress, Op]] = []
    heads: dict[int, int] = {}
    for group in groups:
        for rank in filter(shown.__contains__, group.collectives):
            # A stalled rank's own record ends too early: what others completed, it has run.
            op = group.pending(rank, group.last if rank in stalled else group.passed)
            if op is not None:
                pending.append((rank, group, op))
                heads[rank] = min(op.record, heads.get(rank, op.record))
    known: dict[tuple[int, int], _Others] = {}
    for rank, group, op in pending:
        others = known.get((id(group), op.seq))
        if others is None:
            effort.spend(len(group.ranks))
            others = known[id(group), op.seq] = _others(group, op.seq, shown, stalled, heads)
        # A device runs its operations in order: this one waits for an earlier one of a peer.
        is_head = op.record == heads[rank]
        stuck = others.stuck_or_behind if is_head else others.stuck
        yield Wait(rank, op, group, others.missing, others.unknown, stuck, others.idle)


def _others(
    group: GroupProgress,
    seq: int,
    shown: Collection[int],
    stalled: Mapping[int, Collective],
    heads: Mapping[int, int],
) -> _Others:
    members = {*group.ranks}
    late = {rank for rank in members if rank in shown and group.entered.get(rank, -1) < seq}
    if group.waits_for_all(seq):
        missing = frozenset(late - group.unclear)
    else:
        missing = frozenset(late & group.entered.keys())
    unknown = frozenset(rank for rank in members if rank not in shown) | (late - missing)
    if missing or unknown:
        return _Others(missing, unknown, _NOBODY, _NOBODY, _NOBODY)
    ops = {rank: op for rank, op in group.operations[seq].items() if rank in members}
    idle = _NOBODY
    if any(op.started for op in group.operations[seq].values()):
        idle = frozenset(rank for rank, op in ops.items() if not op.started)
    stuck = idle | {rank for rank in members if rank in stalled}
    behind = {rank for rank, op in ops.items() if heads.get(rank, op.record) < op.record}
    return _Others(missing, unknown, idle, stuck, stuck | behind)


def transfer_waits(
    groups: Iterable[GroupProgress],
    dumps: Mapping[int, Dump],
    shown: Collection[int],
    stalled: Mapping[int, Collective],
    effort: Effort,
) -> Iterator[Wait]:
    """Yield the sends and receives that the other side does not answer."""
    groups = list(groups)
    reached = _reached(groups, stalled)
    for group in groups:
        effort.spend(_OF_TRANSFER * sum(map(len, group.transfers.values())))
        only_transfers = not any(group.collectives.values())
        open_ = {
            (rank, op.name, group.ranks[op.peer]): op
            for rank, ops in group.transfers.items()
            if rank in shown
            for op in reversed(ops)
            if not op.done
            and not (only_transfers and op.seq <= _completed(dumps[rank], group))
            and op.record > reached.get(rank, -1)
            and 0 <= op.peer < len(group.ranks)
        }
        for (rank, name, peer), op in open_.items():
            if peer not in shown:
                yield Wait(rank, op, group, unknown=frozenset({peer}))
            elif (peer, "recv" if name == "send" else "send", rank) not in open_:
                yield Wait(rank, op, group, missing=frozenset({peer}))


def _completed(dump: Dump, group: GroupProgress) -> int:
    """Return the recorder's number of completed operations; a negative one if it has none."""
    counts = dump.groups[group.name].counts
    return counts[1] if counts else -1


def _reached(
    groups: Iterable[GroupProgress], stalled: Mapping[int, Collective]
) -> Mapping[int, int]:
    """Return the record of the last operation that a stalled rank's device has surely run."""
    found: dict[int, int] = {}
    for group in groups:
        for rank, ops in group.collectives.items():
            if rank in stalled:
                records = (op.record for seq, op in ops.items() if seq <= group.passed)
                found[rank] = max(found.get(rank, -1), max(records, default=-1))
    return found
