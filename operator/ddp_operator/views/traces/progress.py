"""How far each rank came in each process group, read from all dumps together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ddp_operator.views.traces.dump import Dump, Op

_TOGETHER: Final = frozenset(
    {
        "all_reduce",
        "allreduce_coalesced",
        "all_gather",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "barrier",
        "all_reduce_barrier",
    }
)
"""Collectives that complete on a rank only after all ranks have entered them. The root of a
broadcast is done earlier, and so may be a rank of an all_to_all that receives nothing."""


@dataclass
class GroupProgress:
    """A process group: its members, and the operations of each rank."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Global ranks by rank in the group; without a record, those that used it."""
    collectives: dict[int, dict[int, Op]] = field(default_factory=dict)
    """By rank and sequence number."""
    transfers: dict[int, list[Op]] = field(default_factory=dict)
    """Sends and receives by rank."""
    entered: dict[int, int] = field(default_factory=dict)
    """By rank: the last collective that it entered. No entry: its dump does not show it."""
    passed: int = -1
    """The last collective that all ranks must have entered, since a rank completed it."""
    completed: dict[int, int] = field(default_factory=dict)
    """By rank: the last collective that it completed, as far as its dump shows."""
    trailing: frozenset[int] = frozenset()
    """Ranks that entered less than all must have: their dumps are older than the others'."""
    unclear: frozenset[int] = frozenset()
    """Ranks with dumps that show neither their operations nor a credible count."""

    def late(self, rank: int) -> list[Op]:
        """Return the collectives that a rank has not seen complete, unlike the others."""
        others = [self.completed.get(other, -1) for other in self.collectives if other != rank]
        last = max(self.passed, min(others, default=-1))
        ops = self.collectives.get(rank, {}).values()
        return [op for op in ops if not op.done and op.seq <= last]

    def pending(self, rank: int, after: int) -> Op | None:
        """Return the first collective after a sequence number that a rank has not completed."""
        ops = self.collectives.get(rank, {})
        return min(
            (op for seq, op in ops.items() if not op.done and seq > after),
            key=lambda op: op.seq,
            default=None,
        )

    def operations(self, seq: int) -> dict[int, Op]:
        """Return a collective by rank, of those that show it."""
        return {rank: ops[seq] for rank, ops in self.collectives.items() if seq in ops}

    def waits_for_all(self, seq: int) -> bool:
        """Tell whether a collective completes nowhere before all have entered it."""
        return any(op.name in _TOGETHER for op in self.operations(seq).values())


def progress(dumps: Mapping[int, Dump]) -> list[GroupProgress]:
    """Return the groups of all dumps, by rank of the dump."""
    groups: dict[tuple[str, tuple[int, ...]], GroupProgress] = {}
    for rank, dump in dumps.items():
        for group in dump.groups.values():
            found = groups.setdefault(
                (group.name, group.ranks),
                GroupProgress(group.name, group.description, group.ranks),
            )
            found.collectives.setdefault(rank, {})
            found.transfers.setdefault(rank, [])
        for op in dump.ops:
            found = groups[op.group, dump.groups[op.group].ranks]
            if op.is_p2p:
                found.transfers[rank].append(op)
            else:
                found.collectives[rank][op.seq] = op
    for found in groups.values():
        if not found.ranks:
            everyone = found.description == "default_pg"
            found.ranks = tuple(sorted(dumps if everyone else found.collectives))
        _count(found, dumps)
    return list(groups.values())


def _count(group: GroupProgress, dumps: Mapping[int, Dump]) -> None:
    """Find how far each rank came, and what all must have passed."""
    shown = {rank: max(ops) for rank, ops in group.collectives.items() if ops}
    unused = {rank for rank in group.ranks if rank in dumps and _lacks(dumps[rank], group)}
    unused |= {rank for rank in group.collectives if dumps[rank].is_complete}
    group.entered = dict.fromkeys(unused, 0) | shown
    group.completed = dict(_completed(group))
    if shown and not any(group.transfers.values()):
        # The recorder's counts fill the gap where a dump shows no operation of the group.
        counts = {
            rank: dumps[rank].status[group.name]
            for rank in group.collectives.keys() - group.entered.keys()
            if group.name in dumps[rank].status
        }
        beyond = {rank for rank, count in counts.items() if count.entered > max(shown.values())}
        # The few that show operations have older dumps, or the few others counted transfers.
        group.unclear = frozenset(beyond if len(beyond) <= len(shown) else ())
        for rank, count in counts.items():
            if rank not in group.unclear and count.entered >= 0:
                group.entered[rank] = count.entered
                group.completed[rank] = min(count.completed, count.entered)
    together = sorted(
        seq
        for seq in {seq for ops in group.collectives.values() for seq in ops}
        if group.waits_for_all(seq)
    )
    last = max(group.completed.values(), default=-1)
    group.passed = max((seq for seq in together if seq <= last), default=-1)
    group.trailing = frozenset(
        rank
        for rank, entered in group.entered.items()
        if entered < group.passed or (entered < last and group.late(rank))
    )


def _lacks(dump: Dump, group: GroupProgress) -> bool:
    """Tell whether a rank has not used a group; the recorder notes each at its first use."""
    return group.name not in dump.groups and any(each.ranks for each in dump.groups.values())


def _completed(group: GroupProgress) -> Iterator[tuple[int, int]]:
    """Yield the last collective that each rank completed; a rank completes them in order."""
    for rank, ops in group.collectives.items():
        if ops:
            yield rank, min((seq - 1 for seq, op in ops.items() if not op.done), default=max(ops))
