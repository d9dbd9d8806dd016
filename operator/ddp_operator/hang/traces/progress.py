"""How far each rank came in each process group, read from all dumps together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from ddp_operator.hang.traces.effort import Effort
from ddp_operator.hang.traces.records import Dump, GroupKey, Op

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
    operations: dict[int, dict[int, Op]] = field(default_factory=dict)
    """The same by sequence number and rank."""
    transfers: dict[int, Sequence[Op]] = field(default_factory=dict)
    """Sends and receives by rank."""
    entered: dict[int, int] = field(default_factory=dict)
    """By rank: the last collective that it entered. No entry: its dump does not show it."""
    passed: int = -1
    """The last collective that all ranks must have entered, since a rank completed it."""
    completed: dict[int, int] = field(default_factory=dict)
    """By rank: the last collective that it completed, as far as its dump shows."""
    last: int = -1
    """The last collective that a rank completed."""
    trailing: frozenset[int] = frozenset()
    """Ranks that entered less than all must have: their dumps are older than the others'."""
    unclear: frozenset[int] = frozenset()
    """Ranks with dumps that show neither their operations nor a credible count."""
    _slowest: Sequence[int] = ()
    """The two lowest numbers of completed collectives."""

    def late(self, rank: int) -> list[Op]:
        """Return the collectives that a rank has not seen complete, unlike the others."""
        is_slowest = self.completed.get(rank, -1) in self._slowest[:1]
        last = max(self.passed, min(self._slowest[is_slowest:], default=-1))
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

    def waits_for_all(self, seq: int) -> bool:
        """Tell whether a collective completes nowhere before all have entered it."""
        return any(op.name in _TOGETHER for op in self.operations[seq].values())

    def count(self, dumps: Mapping[int, Dump]) -> None:
        """Find how far each rank came, and what all must have passed."""
        shown = {rank: max(ops) for rank, ops in self.collectives.items() if ops}
        unused = {
            rank
            for rank in self.ranks
            # The recorder notes each group at its first use.
            if rank in dumps and self.name not in dumps[rank].groups and dumps[rank].knows_ranks
        }
        unused |= {rank for rank in self.collectives if dumps[rank].is_complete}
        self.entered = dict.fromkeys(unused, 0) | shown
        self.completed = dict(self._completed())
        if shown and not any(self.transfers.values()):
            self._add_counts(dumps, shown)
        self.last = max(self.completed.values(), default=-1)
        self._slowest = nsmallest(2, (self.completed.get(rank, -1) for rank in self.collectives))
        together = (seq for seq in self.operations if seq <= self.last and self.waits_for_all(seq))
        self.passed = max(together, default=-1)
        self.trailing = frozenset(
            rank
            for rank, entered in self.entered.items()
            if entered < self.passed or (entered < self.last and self.late(rank))
        )

    def _completed(self) -> Iterator[tuple[int, int]]:
        """Yield the last collective that each rank completed; a rank completes them in order."""
        for rank, ops in self.collectives.items():
            if ops:
                waiting = (seq - 1 for seq, op in ops.items() if not op.done)
                yield rank, min(waiting, default=max(ops))

    def _add_counts(self, dumps: Mapping[int, Dump], shown: Mapping[int, int]) -> None:
        """Fill the gap where a dump shows no operation of the group with the recorder's counts."""
        found = {
            rank: dumps[rank].groups[self.name].counts
            for rank in self.collectives.keys() - self.entered.keys()
        }
        counts = {rank: count for rank, count in found.items() if count is not None}
        most = max(shown.values())
        beyond = {rank for rank, (entered, _) in counts.items() if entered > most}
        # The few that show operations have older dumps, or the few others counted transfers.
        self.unclear = frozenset(beyond if len(beyond) <= len(shown) else ())
        for rank, (entered, completed) in counts.items():
            if rank not in self.unclear and entered >= 0:
                self.entered[rank] = entered
                self.completed[rank] = min(completed, entered)


def progress(dumps: Mapping[int, Dump], effort: Effort) -> list[GroupProgress]:
    """Return the groups of all dumps, by rank of the dump."""
    groups: dict[GroupKey, GroupProgress] = {}
    for rank, dump in dumps.items():
        for own in dump.groups.values():
            group = groups.get(own.key)
            if group is None:
                name, spans = own.key
                group = groups[own.key] = GroupProgress(
                    name, own.description, _expanded(spans, effort)
                )
            group.collectives[rank] = {op.seq: op for op in own.collectives}
            group.transfers[rank] = own.transfers
            for op in own.collectives:
                group.operations.setdefault(op.seq, {})[rank] = op
    for group in groups.values():
        if not group.ranks:
            everyone = group.description == "default_pg"
            group.ranks = tuple(sorted(dumps if everyone else group.collectives))
            effort.spend(len(group.ranks))
        group.count(dumps)
    return list(groups.values())


def _expanded(spans: Sequence[Sequence[int]], effort: Effort) -> tuple[int, ...]:
    ranks: list[int] = []
    for first, step, count in spans:
        effort.spend(max(count, 1))
        ranks += range(first, first + step * count, step) if step else [first]
    return tuple(ranks)
