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
WITHIN_STEP: Final = 0.2
"""Seconds from the beginning of a step to a moment in which all ranks are within it."""


@dataclass(frozen=True)
class GoodputAccount:
    """One job that has succeeded. Times are in seconds since the journal was opened."""

    name: str
    created: float
    ended: float
    status: DDPJobStatus
    steps: Sequence[Sequence[Begun]]
    """By rank, the steps that were begun, in order."""
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
        own = [each for each in self.deeds if each.job == self.name]
        failures = [deed for deed in own if deed.kind in KILLS | REMOVALS]
        struck = [self._stopped(deed) for deed in failures if self._is_missed(deed)]
        struck += self._joined()
        steps = self.steps[0] if self.steps else ()
        # A step is complete when the next one begins; one that nobody completed begins again.
        complete = [
            (after.seconds, step.step)
            for step, after in pairwise(steps)
            if after.step == step.step + 1
        ]
        last = [(self.ended, steps[-1].step)] if steps else []
        return Times(self.created, [*complete, *last], struck, ended=self.ended)

    def _joined(self) -> Iterator[float]:
        """Yield when other pods took part: the group was formed again, as for a larger one."""
        first = min((step.step for steps in self.steps for step in steps), default=0)
        for steps in self.steps:
            if steps and steps[0].step > first:
                yield steps[0].seconds - WITHIN_STEP
            for before, step in pairwise(steps):
                if before.pod != step.pod or step.step > before.step + 1:
                    yield step.seconds - WITHIN_STEP

    def _is_missed(self, deed: Deed) -> bool:
        """Tell whether the others must wait for it: not if the pod had not joined, or had left."""
        begun = [[step for step in steps if step.seconds < deed.seconds] for steps in self.steps]
        if not any(begun):
            return True  # it should have trained
        own = [step for steps in begun for step in steps if step.pod == deed.pod]
        newest = max((steps[-1] for steps in begun if steps), key=lambda step: step.seconds)
        # A rank may begin the next step a moment before the others.
        return bool(own) and max(own, key=lambda step: step.seconds).step >= newest.step - 1

    def _stopped(self, deed: Deed) -> float:
        """Return when a pod stopped: one that was deleted first completes and saves its step."""
        if deed.kind not in REMOVALS:
            return deed.seconds
        begun = [step.seconds for steps in self.steps for step in steps if step.pod == deed.pod]
        # All ranks begin a step at nearly the same time; a moment later all are within it.
        return max([deed.seconds, *(seconds + WITHIN_STEP for seconds in begun)])
