"""Pods of other tenants, which take places on nodes and leave them.

The operator does not see them: its watch selects the pods of jobs.
"""

from dataclasses import dataclass, field

from tests.simulation.world.resources import Resources


@dataclass
class Tenants:
    """The requests of other tenants' pods on each node."""

    taken: dict[str, Resources] = field(default_factory=dict)
    stay: dict[str, Resources] = field(default_factory=dict)
    """Requests of those who never leave."""
    changed_at: float = 0.0

    def fill(self, node: str, free: Resources, now: float) -> None:
        """Take all that is free on a node."""
        self.taken[node] = self.taken.get(node, Resources()) + free
        self.changed_at = now

    def leave(self, node: str, now: float) -> None:
        """Give back all that they have on a node."""
        self.taken.pop(node, None)
        self._stay_on(node)
        self.changed_at = now

    def clear(self) -> None:
        """Leave all nodes but those that are always held."""
        self.taken = dict(self.stay)

    def _stay_on(self, node: str) -> None:
        if node in self.stay:
            self.taken[node] = self.stay[node]
