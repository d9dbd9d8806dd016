"""Compares what a job's status says with what was done to it, and with the pods that existed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.membership.world import slots_of

from tests.chaos.journal import Deed
from tests.chaos.record import Record
from tests.chaos.schedule import Kind

HANDOVER_SECONDS: Final = 120.0
"""The longest time for a new process to start and receive the state, with a minute's outage."""
MAX_FAILURES: Final = 10
"""As many as a status remembers."""
SIGKILL: Final = 9

KILLS: Final = frozenset({Kind.KILL_RANK, Kind.KILL_CONTAINER})
"""To the operator these look like the training's own failures: they are charged."""
REMOVALS: Final = frozenset({Kind.DELETE_POD, Kind.FORCE_DELETE_POD})
"""These are disruptions: never charged."""


@dataclass(frozen=True)
class Begun:
    """A step that a rank began."""

    seconds: float
    """Since the journal was opened."""
    pod: str
    step: int

    @classmethod
    def all_in(cls, file: Path, *, opened: float = 0.0) -> list[Self]:
        """Read the steps of a rank; a line that it is writing is left out."""
        entries = map(json.loads, file.read_text().rpartition("\n")[0].splitlines())
        return [cls(entry["time"] - opened, entry["pod"], entry["step"]) for entry in entries]


@dataclass(frozen=True)
class Account:
    """One job that has succeeded, and all records of it."""

    name: str
    scope: str
    replicas: int
    status: DDPJobStatus
    pods: Sequence[Any]
    """Its pods now, as kubectl shows them."""
    deeds: Sequence[Deed]
    """All deeds, those done to others too."""
    record: Record
    elastic: bool = False
    steps: Sequence[Sequence[Begun]] = ()
    """By rank, of jobs that continue from memory: the steps that were begun, in order."""

    def complaints(self) -> list[str]:
        """Return what does not fit; nothing if all is well."""
        return [f"{self.name}: {text}" for text in self._complaints()]

    def _complaints(self) -> Iterator[str]:
        yield from self._about_counters()
        yield from self._about_failures()
        yield from self._about_pods()
        yield from self._about_steps()

    def _about_counters(self) -> Iterator[str]:
        status, killed, removed = self.status, self._pods_of(KILLS), self._pods_of(REMOVALS)
        if status.restarts > len(killed):
            yield f"{status.restarts} charged restarts of {len(killed)} kills: {killed}"
        continued = sum(bool(failure.continued) for failure in status.failures)
        if status.disruptions > len(removed) + continued:
            yield f"{status.disruptions} disruptions of {len(removed)} removals: {removed}"
        decisions = status.restarts + status.disruptions
        replaced = sum("-r" in name.removeprefix(self.name) for name in self._names)
        generations = sum(self.record.generations[self.name].values())
        # A single decision may replace several pods.
        most = {
            "Gang": status.attempt,
            "Pod": status.attempt + replaced,
            # If all pods are lost, none is left in which processes could restart.
            "InPlace": status.attempt + generations,
        }[self.scope]
        # While the API server was gone, the node looked lost, and new pods kept off it.
        rescheduled = len(self.record.rescheduled[self.name])
        if not status.attempt - rescheduled <= decisions <= most:
            yield (
                f"{status.restarts} restarts, {status.disruptions} disruptions and "
                f"{rescheduled} times for another node, but {status.attempt} new attempts, "
                f"{replaced} replacements, {generations} generations"
            )
        if self.record.attempts[self.name] != set(range(status.attempt + 1)):
            seen = sorted(self.record.attempts[self.name])
            yield f"attempt {status.attempt}, but pods of attempts {seen} were seen"
        if barred := status.bookkeeping.barred_nodes:
            yield f"it must not run on {barred}, and there is no other node"

    def _about_failures(self) -> Iterator[str]:
        failures = self.status.failures
        expected = min(MAX_FAILURES, self.status.restarts + self.status.disruptions)
        if len(failures) != expected:
            yield f"{len(failures)} failures on record instead of {expected}"
        for number, failure in enumerate(failures):
            if not self._explained(failure, is_first=number == 0):
                yield f"nothing was done that explains {failure!r}"

    def _explained(self, failure: Failure, *, is_first: bool) -> bool:
        if failure.disruption:
            return not failure.charged and failure.pod in self._pods_of(REMOVALS)
        # Who dies before it has begun again after a failure may have died of that: it is one
        # failure, and charged once.
        charged = not is_first if failure.continued else failure.charged
        is_own = failure.class_ == "Application" and failure.signal == SIGKILL
        return bool(charged) and is_own and failure.pod in self._pods_of(KILLS)

    def _about_pods(self) -> Iterator[str]:
        counts = self.status.bookkeeping.replacements
        expected = {
            f"{self.name}-{self.status.attempt}-{slot}"
            + (f"-r{counts[str(slot)]}" if str(slot) in counts else "")
            for slot in slots_of(self.status.world, self.replicas, elastic=self.elastic)
        }
        found = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.pods}
        if found != dict.fromkeys(expected, "Succeeded"):
            yield f"its pods should be {sorted(expected)}, all succeeded, and are {found}"
        if lost := expected & {deed.pod for deed in self._deeds if deed.kind in REMOVALS}:
            yield f"{sorted(lost)} were deleted, and yet are there"
        for name in sorted(self._names):
            if len(self.record.uids[name]) != 1:
                yield f"{name} was created more than once"

    def _about_steps(self) -> Iterator[str]:
        """Steps are redone only where nobody was left who had them: after a new attempt, or a blow
        that came before anybody had taken the state over.
        """
        if unknown := {step.pod for steps in self.steps for step in steps} - self._names:
            yield f"steps were begun in pods that nobody saw: {sorted(unknown)}"
        fatal = sum(map(self._hits_the_last, self._deeds))
        for rank, steps in enumerate(self.steps):
            # Who is gone may have completed a step that the others had not, and begun the next one.
            back = [now.step for then, now in pairwise(steps) if now.step < then.step - 1]
            if len(back) > self.status.attempt + fatal:
                yield (
                    f"rank {rank} went back {len(back)} times, to steps {back}, and of all blows "
                    f"{fatal} hit the last one that had the state"
                )

    def _hits_the_last(self, blow: Deed) -> bool:
        """Tell whether it came so soon after another one that no other pod had the state yet."""
        before = [deed.seconds for deed in self._deeds if deed.seconds < blow.seconds]
        if not before or blow.seconds - before[-1] > HANDOVER_SECONDS:
            return False
        begun = [step for steps in self.steps for step in steps if step.seconds < blow.seconds]
        others = {
            step.pod
            for step in begun
            if step.pod != blow.pod and self._attempt_of(step.pod) == self._attempt_of(blow.pod)
        }
        return not any(
            self._has_state(pod, blow.seconds, [step for step in begun if step.pod == pod])
            for pod in others
        )

    def _has_state(self, pod: str, at: float, begun: Sequence[Begun]) -> bool:
        """Tell whether a pod that has begun these steps has the state at that moment."""
        struck = [deed for deed in self._deeds if deed.pod == pod and deed.seconds < at]
        # After these alone another process comes in the same pod.
        if any(deed.kind is not Kind.KILL_RANK for deed in struck):
            return False
        return not struck or any(step.seconds > struck[-1].seconds for step in begun)

    def _attempt_of(self, pod: str) -> str:
        return pod.removeprefix(f"{self.name}-").split("-")[0]

    @property
    def _names(self) -> set[str]:
        return self.record.names_of(self.name)

    @property
    def _deeds(self) -> list[Deed]:
        return [deed for deed in self.deeds if deed.job == self.name]

    def _pods_of(self, kinds: frozenset[Kind]) -> list[str]:
        return [deed.pod for deed in self._deeds if deed.kind in kinds]
