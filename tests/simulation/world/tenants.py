"""Pods of other tenants, which take places on nodes and leave them.

The operator does not see them: its watch selects the pods of jobs.
"""

from dataclasses import dataclass, field

from tests.simulation.world.resources import Resources


@dataclass
class Tenants:
    """The requests of other tenants' pods on each node."""

    taken: dict[str, Resources] = field(default_factory=dict)
    changed_at: float = 0.0

    def fill(self, node: str, free: Resources, now: float) -> None:
        """Take all that is free on a node."""
        self.taken[node] = self.taken.get(node, Resources()) + free
        self.changed_at = now

    def leave(self, node: str, now: float) -> None:
        """Give back all that they have on a node."""
        self.taken.pop(node, None)
        self.changed_at = now
