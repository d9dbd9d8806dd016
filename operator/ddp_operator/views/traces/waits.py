"""Reads from the dumps which ranks wait in which operations, and for whom."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ddp_operator.views.traces.dump import Dump, Op
from ddp_operator.views.traces.progress import GroupProgress


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
    def since_ns(self) -> int:
        """Return when the last of them entered it, in nanoseconds of Unix time."""
        return max((op.created_ns for op in self.by_rank.values()), default=0)


@dataclass(frozen=True)
class Wait:
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


def collective_of(group: GroupProgress, seq: int) -> Collective:
    """Return a collective of a group, with the name that most ranks recorded."""
    by_rank = group.operations(seq)
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


def stalled_ranks(groups: Iterable[GroupProgress], shown: Iterable[int]) -> dict[int, Collective]:
    """Return ranks with records that end before a collective that others completed with them.

    They entered it and their peers completed it, so their device took part. If they never saw it
    complete, the device or the thread that watches it has stopped.
    """
    first: dict[int, tuple[int, Collective]] = {}
    for group in groups:
        for rank in shown:
            for op in group.late(rank):
                if rank not in first or op.record < first[rank][0]:
                    first[rank] = op.record, collective_of(group, op.seq)
    return {rank: collective for rank, (_, collective) in sorted(first.items())}


def collective_waits(
    groups: Iterable[GroupProgress], shown: Iterable[int], stalled: Mapping[int, Collective]
) -> Iterator[Wait]:
    """Yield the first collective of each group that a rank entered and did not complete."""
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
        yield Wait(
            rank,
            op,
            group,
            frozenset(missing),
            frozenset(unknown),
            frozenset(stuck | idle),
            frozenset(idle),
        )


def transfer_waits(
    groups: Iterable[GroupProgress],
    dumps: Mapping[int, Dump],
    shown: Iterable[int],
    stalled: Mapping[int, Collective],
) -> Iterator[Wait]:
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
                yield Wait(rank, op, group, unknown=frozenset({peer}))
            elif (peer, "recv" if name == "send" else "send", rank) not in open_:
                yield Wait(rank, op, group, missing=frozenset({peer}))


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
