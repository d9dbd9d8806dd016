"""Process groups by node and across nodes, for what should not travel further than it must.

Every rank has to create every group, in the same order, also those that it does not belong to:
otherwise collectives hang, or meet those of another group. Here all groups come from one layout
that is the same on all ranks, which makes that order the only one possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed as dist


@dataclass(frozen=True)
class Layout:
    """Which ranks stand on which node. Nodes may have different numbers of ranks."""

    nodes: tuple[tuple[int, ...], ...]
    """The ranks of each node, ascending; every rank of the job stands on exactly one node."""

    @classmethod
    def uniform(cls, *, world_size: int, local_world_size: int) -> Layout:
        """The layout of a DDPJob: pod p has the ranks from p x local_world_size on.

        Raises:
            ValueError: the ranks do not fill whole nodes.
        """
        if local_world_size < 1 or world_size < 1 or world_size % local_world_size:
            raise ValueError(
                f"{world_size} ranks do not make whole nodes of {local_world_size}: "
                "use Layout.gathered where nodes differ"
            )
        return cls(
            tuple(
                tuple(range(first, first + local_world_size))
                for first in range(0, world_size, local_world_size)
            )
        )

    @classmethod
    def gathered(cls, node: str | int) -> Layout:
        """Ask all ranks of the default group for their node; a collective.

        `node`: any name for this rank's node, the same on all of its ranks. The nodes of the
        layout are in the order of their lowest ranks.
        """
        names: list[str | int | None] = [None] * dist.get_world_size()
        dist.all_gather_object(names, node)
        ranks: dict[str | int | None, list[int]] = {}
        for rank, name in enumerate(names):
            ranks.setdefault(name, []).append(rank)
        return cls(tuple(tuple(members) for members in ranks.values()))

    def across(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each index: of all nodes the first rank, of all nodes the second, …

        A node with fewer ranks than others is missing from the last ones.
        """
        most = max(len(ranks) for ranks in self.nodes)
        return tuple(
            tuple(ranks[index] for ranks in self.nodes if index < len(ranks))
            for index in range(most)
        )


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
    """The two groups of a rank: with its neighbours, and with its counterparts elsewhere."""

    node: dist.ProcessGroup
    """The ranks of this rank's node."""
    across: dist.ProcessGroup
    """The ranks with this rank's index on each node."""

    @classmethod
    def create(
        cls, layout: Layout, *, backend: str | None = None, timeout: timedelta | None = None
    ) -> NodeGroups:
        """Create all groups of the layout; a collective of the default group.

        `backend`, `timeout`: of the new groups; None: as in the default group.

        Raises:
            ValueError: the layout is not one of the default group's ranks.
        """
        known = sorted(rank for ranks in layout.nodes for rank in ranks)
        if known != list(range(dist.get_world_size())):
            raise ValueError(f"the layout has the ranks {known}, not those of the default group")
        node = _new_groups(layout.nodes, backend=backend, timeout=timeout)
        across = _new_groups(layout.across(), backend=backend, timeout=timeout)
        return cls(node=node, across=across)


def _new_groups(
    members: Sequence[Sequence[int]], *, backend: str | None, timeout: timedelta | None
) -> dist.ProcessGroup:
    """Create a group for each of `members`, in their order; the one that this rank belongs to."""
    mine: dist.ProcessGroup | None = None
    for ranks in members:
        group = dist.new_group(list(ranks), backend=backend, timeout=timeout)
        if dist.get_rank() in ranks:
            mine = group
    assert mine is not None  # a layout has every rank
    return mine
