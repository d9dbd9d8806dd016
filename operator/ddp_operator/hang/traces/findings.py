"""The answer of an analysis: findings, and what the dumps do not show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddp_operator.hang.traces.records import GroupOps, Op
from ddp_operator.hang.traces.waits import Collective

Kind = Literal[
    "missing", "alone", "mismatch", "deadlock", "incomplete", "unseen", "nobody", "no-wait"
]


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
class TraceAnalysis:
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
    last: Mapping[int, tuple[GroupOps, Op, str]]
    """The last operation that each named rank entered, if its dump shows one, with the group, and
    the place in the script."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the named ranks."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.ranks}))
