"""Judges an incident by what was seen from outside the operator, and by what it then reports.

Steps come from files that the ranks write, pods from a watch, groups from the pods' logs. Only the
class, the words and the charge of a failure are the operator's, and are compared with what is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ddp_operator.api.status import DDPJobStatus

from tests.chaos.accounts import Begun

PAUSE_SECONDS: Final = 2.0
"""Ten steps and more: shorter gaps between two steps are not counted as time without a step."""


@dataclass(frozen=True)
class Expected:
    """The expected result of an incident."""

    failures: range = range(1, 2)
    """How many are recorded."""
    class_: str = "Disruption"
    words: str = ""
    """Regular expression for reason and message of each failure."""
    charged: int = 0
    new_pods: range = range(1)
    """How many pods are created after the first ones."""
    new_groups: range = range(1, 2)
    """How often the ranks form their group again."""
    keeps_steps: bool = False
    """Ranks repeat at most the step that was under way when their group ended."""


@dataclass(frozen=True)
class Training:
    """The steps of a job, of the operator or of torchrun."""

    steps: Sequence[Sequence[Begun]]
    """By rank, the steps that were begun, in order."""
    last_step: int
    """Of the training."""

    def seconds_without_step(self, *, until: float = 0) -> float:
        """Return the sum of all pauses of the whole job, to a time after its last step too."""
        times = sorted(step.seconds for steps in self.steps for step in steps)
        gaps = [later - earlier for earlier, later in pairwise([*times, until])]
        return sum(gap for gap in gaps if gap > PAUSE_SECONDS)

    def complaints_about_steps(self) -> Iterator[str]:
        """Yield what is wrong with the steps of a job that has succeeded."""
        for rank, steps in enumerate(self.steps):
            if {step.step for step in steps} != set(range(1, self.last_step + 1)):
                last = max((step.step for step in steps), default=0)
                yield f"rank {rank} did not train each step up to {self.last_step}; last: {last}"
            order = [then.pod for now, then in pairwise(steps) if now.pod != then.pod]
            pods = [*(step.pod for step in steps[:1]), *order]
            if len(pods) != len(set(pods)):
                yield f"pods of rank {rank} trained in turns: {pods}"


@dataclass(frozen=True)
class Seen(Training):
    """A job of the operator that has ended."""

    phases: Mapping[str, str]
    """Of the job's pods, by name."""
    new_pods: int
    new_groups: int
    doubles: Sequence[str]
    """Pairs of pods that served as one rank at the same time."""
    status: DDPJobStatus

    def complaints(self, expected: Expected) -> list[str]:
        """Return what is not as it should be."""
        return [
            *self._about_end(),
            *self._about_restarts(expected),
            *self._about_words(expected),
            *self._about_repeats(expected),
        ]

    def _about_end(self) -> Iterator[str]:
        if self.status.phase != "Succeeded":
            yield f"the job is {self.status.phase}: {self.status.message}"
        if set(self.phases.values()) != {"Succeeded"}:
            yield f"not all pods succeeded: {dict(self.phases)}"
        yield from self.complaints_about_steps()
        yield from (f"two pods of one rank at once: {double}" for double in self.doubles)

    def _about_restarts(self, expected: Expected) -> Iterator[str]:
        if self.new_pods not in expected.new_pods:
            yield f"{self.new_pods} new pods instead of {_in_words(expected.new_pods)}"
        if self.new_groups not in expected.new_groups:
            yield f"{self.new_groups} new groups instead of {_in_words(expected.new_groups)}"

    def _about_repeats(self, expected: Expected) -> Iterator[str]:
        for rank, steps in enumerate(self.steps):
            begun = [step.step for step in steps]
            again = [now for then, now in pairwise(begun) if now <= then]
            is_back = begun != sorted(begun) or len(again) > self.new_groups
            if expected.keeps_steps and is_back:
                yield f"rank {rank} trained steps more than once, again from {again}"

    def _about_words(self, expected: Expected) -> Iterator[str]:
        failures = self.status.failures
        if len(failures) not in expected.failures:
            yield f"{len(failures)} failures instead of {_in_words(expected.failures)}: {failures}"
        if self.status.restarts != expected.charged:
            yield f"{self.status.restarts} charged instead of {expected.charged}"
        for failure in failures:
            said = f"{failure.reason}: {failure.message}"
            if failure.class_ != expected.class_ or not re.search(expected.words, said):
                yield f"a failure is {failure.class_}, {said!r}"


def _in_words(numbers: range) -> str:
    first, last = numbers[0], numbers[-1]
    return str(first) if first == last else f"{first} to {last}"
