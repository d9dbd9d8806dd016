"""Compares the goodput of a job that has succeeded with the times of its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ddp_operator.api.status import DDPJobStatus

from tests.chaos.accounts import KILLS, REMOVALS, Begun
from tests.chaos.journal import Deed
from tests.simulation.stopwatch import Times, measure

TOLERANCE: Final = 0.03
"""Of the job's age."""


@dataclass(frozen=True)
class GoodputAccount:
    """One job that has succeeded. Times are in seconds since the journal was opened."""

    name: str
    created: float
    ended: float
    status: DDPJobStatus
    steps: Sequence[Begun]
    """The steps that rank 0 began, in order."""
    deeds: Sequence[Deed]
    """All deeds, those done to others too."""

    def complaints(self) -> Iterator[str]:
        """Say what does not fit; nothing when all is well."""
        books = self.status.goodput
        if books is None:
            yield f"{self.name}: no goodput"
            return
        found = measure(self._times())
        # Nobody has noted when pods got their nodes.
        pairs = {
            "training": (books.training_seconds, found["training"]),
            "lost": (books.lost_seconds, found["lost"]),
            "waiting and starting": (
                books.pending_seconds + books.starting_seconds,
                found["pending"] + found["starting"],
            ),
        }
        for kind, (booked, measured) in pairs.items():
            if abs(booked - measured) > TOLERANCE * (self.ended - self.created):
                yield f"{self.name}: {booked} s of {kind}, but its steps show {measured:.0f} s"

    def _times(self) -> Times:
        struck = [
            deed.seconds
            for deed in self.deeds
            if deed.job == self.name and deed.kind in KILLS | REMOVALS
        ]
        # A step is complete when the next one begins; one that nobody completed begins again.
        complete = [
            (after.seconds, step.step)
            for step, after in pairwise(self.steps)
            if after.step == step.step + 1
        ]
        last = [(self.ended, self.steps[-1].step)] if self.steps else []
        return Times(self.created, [*complete, *last], struck, ended=self.ended)
