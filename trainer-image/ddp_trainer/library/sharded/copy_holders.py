"""The ranks that hold copies of a rank's snapshots, in the order by which launchers place theirs.

Ranks of one pod, and pods of one failure domain, can be lost together, so their copies go to
others: see `ddp_protocol.copies`. The launcher of rank 0 knows the order of the pods, and it may
change while the ranks train. All ranks take it from rank 0 at the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate

from ddp_protocol.copies import copy_plan, read_order

from ddp_trainer.collectives.group import Group
from ddp_trainer.process_group.current_assignment import CurrentAssignment

_logger = logging.getLogger(__name__)

Round = tuple[int, int]
"""The rank that receives a copy from this one, and the rank that this one receives a copy from."""


class CopyHolders:
    """The ranks with which one rank exchanges copies."""

    def __init__(self, assignment: CurrentAssignment, *, copies: int) -> None:
        """`copies`: ranks that receive each snapshot."""
        self._assignment = assignment
        self._copies = copies
        self._order: str | None = None
        self.rounds: Sequence[Round] = ()
        """The exchanges after each step, one after the other."""

    @property
    def sources(self) -> set[int]:
        """The ranks of which this one holds copies."""
        return {source for _, source in self.rounds}

    @property
    def are_outdated(self) -> bool:
        """True if the launcher of this rank knows another order; only that of rank 0 has any."""
        return self._assignment.copy_order() not in ("", self._order)

    def follow(self, group: Group) -> None:
        """Use the order of rank 0's launcher; a collective."""
        known = self._assignment.copy_order() or self._order or ""
        order = group.broadcast(known.encode() if group.rank == 0 else None).decode()
        if group.rank == 0 and order != (self._order or ""):
            _logger.info("copies of the ranks' parts go to other failure domains: %.80s", order)
        self._order = order
        sizes = self._assignment.environment.placement.pod_sizes.sizes
        self.rounds = rounds(group.rank, sizes, order, copies=self._copies)


def rounds(rank: int, sizes: Sequence[int], order: str, *, copies: int) -> Sequence[Round]:
    """Return the exchanges of a rank.

    Args:
        rank: the rank.
        sizes: number of ranks of each pod, by node rank.
        order: node ranks, those that can be lost together one after the other; empty or unfit: in
            their order.
        copies: ranks that receive each snapshot.
    """
    firsts = [0, *accumulate(sizes)]
    pods = read_order(order, len(sizes)) or range(len(sizes))
    plan = copy_plan([each for pod in pods for each in range(firsts[pod], firsts[pod + 1])], copies)
    return [
        (holder, next(each for each in plan.sources[rank] if plan.holders[each][number] == rank))
        for number, holder in enumerate(plan.holders[rank])
    ]
