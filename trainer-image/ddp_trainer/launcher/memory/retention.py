"""Decides which snapshots a pod keeps. Pure.

It never releases the newest complete snapshots that it knows, nor those from which this generation
resumed, before newer ones are complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp_trainer.memory.volume import Key


@dataclass(frozen=True, kw_only=True)
class Retention:
    """A pod's knowledge about the snapshots of its group."""

    generation: int
    """Generation of the group."""
    complete: Key | None = None
    """The newest complete snapshots, perhaps of an earlier generation; None: not known."""
    dead: frozenset[Key] = frozenset()
    """Snapshots that will never be complete."""
    decided: bool = False
    """True: it is decided what this generation resumes from."""

    def keeps(self, key: Key) -> bool:
        """Return True if a snapshot must stay."""
        if key in self.dead or (self.complete is not None and key < self.complete):
            return False
        # An earlier generation completes nothing more. Before the decision, any of its snapshots
        # may be the one to resume from.
        return key == self.complete or key.generation >= self.generation or not self.decided

    def resumed_from(self, key: Key) -> bool:
        """Return True if a generation resumed from a snapshot, and none is complete since."""
        return self.decided and key == self.complete and key.generation < self.generation

    def is_pending(self, key: Key) -> bool:
        """Return True if a snapshot is not complete yet, and may become so."""
        return key.generation == self.generation and key != self.complete and self.keeps(key)

    def begins(self, generation: int) -> Retention:
        """Return the knowledge at the begin of a generation."""
        return Retention(generation=generation, complete=self.complete)

    def resumes(self, key: Key | None) -> Retention:
        """Return the knowledge after the decision about a restore; None: nothing is restored."""
        newest = self.complete
        if key is not None and (newest is None or newest.generation < self.generation):
            newest = key
        return replace(self, decided=True, complete=newest)

    def learns(self, complete: int | None, dead: tuple[int, ...]) -> Retention:
        """Return the knowledge after an answer of node rank 0 with steps of this generation."""
        newest = self.complete
        if complete is not None:
            key = Key(self.generation, complete)
            newest = key if newest is None else max(newest, key)
        gone = {Key(self.generation, step) for step in dead}
        return replace(self, complete=newest, dead=frozenset(gone))
