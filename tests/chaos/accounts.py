"""Compares what a job's status says with what was done to it, and with the pods that existed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.membership.world import slots_of

from tests.chaos.journal import Deed
from tests.chaos.record import PodRecord
from tests.chaos.schedule import Kind

HANDOVER_SECONDS: Final = 15.0
"""What a new process gets, on a machine that many share, to start and to take the state over."""
MAX_FAILURES: Final = 10
"""As many as a status remembers."""
SIGKILL: Final = 9

KILLS: Final = frozenset({Kind.KILL_RANK, Kind.KILL_CONTAINER})
"""To the operator these look like the training's own failures: they are charged."""
REMOVALS: Final = frozenset({Kind.DELETE_POD, Kind.FORCE_DELETE_POD})
"""These are disruptions: never charged."""


@dataclass(frozen=True)
class Account:
    """One job that has succeeded, with all that there is to know about it."""

    name: str
    scope: str
    replicas: int
    status: DDPJobStatus
    pods: Sequence[Any]
    """Its pods now, as kubectl shows them."""
    deeds: Sequence[Deed]
    """All deeds, those done to others too."""
    record: PodRecord
    elastic: bool = False
    steps: Sequence[Sequence[int]] = ()
    """By rank, of jobs that go on from memory: the steps that were begun, in order."""

    def complaints(self) -> list[str]:
        """Say what does not fit; nothing when all is well."""
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
        if status.disruptions > len(removed):
            yield f"{status.disruptions} disruptions of {len(removed)} removals: {removed}"
        decisions = status.restarts + status.disruptions
        replaced = sum("-r" in name.removeprefix(self.name) for name in self._names)
        generations = status.world.generation if status.world else 0
        # A single decision may replace several pods.
        most = {
            "Gang": status.attempt,
            "Pod": status.attempt + replaced,
            "InPlace": generations,
        }[self.scope]
        if not status.attempt <= decisions <= most:
            yield (
                f"{status.restarts} restarts and {status.disruptions} disruptions, but "
                f"{status.attempt} new attempts, {replaced} replacements, {generations} generations"
            )
        if self.record.attempts[self.name] != set(range(status.attempt + 1)):
            seen = sorted(self.record.attempts[self.name])
            yield f"attempt {status.attempt}, but pods of attempts {seen} were seen"
        if status.excluded_nodes:
            yield f"it avoids {status.excluded_nodes}, and there is no other node"

    def _about_failures(self) -> Iterator[str]:
        failures = self.status.failures
        expected = min(MAX_FAILURES, self.status.restarts + self.status.disruptions)
        if len(failures) != expected:
            yield f"{len(failures)} failures on record instead of {expected}"
        for failure in failures:
            if not self._explained(failure):
                yield f"nothing was done that explains {failure!r}"

    def _explained(self, failure: Failure) -> bool:
        if failure.disruption:
            return not failure.charged and failure.pod in self._pods_of(REMOVALS)
        charged = failure.charged and failure.class_ == "Application"
        return charged and failure.signal == SIGKILL and failure.pod in self._pods_of(KILLS)

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
        """Steps are redone only where nobody was left who had them: after a new attempt, or blows
        so close to each other that nobody could take the state over in between.
        """
        at = [deed.seconds for deed in self._deeds]
        close = sum(later - earlier < HANDOVER_SECONDS for earlier, later in pairwise(at))
        for rank, steps in enumerate(self.steps):
            back = [step for before, step in pairwise(steps) if step < before]
            if len(back) > self.status.attempt + close:
                yield f"rank {rank} went back {len(back)} times, to steps {back}"

    @property
    def _names(self) -> set[str]:
        return self.record.names_of(self.name)

    @property
    def _deeds(self) -> list[Deed]:
        return [deed for deed in self.deeds if deed.job == self.name]

    def _pods_of(self, kinds: frozenset[Kind]) -> list[str]:
        return [deed.pod for deed in self._deeds if deed.kind in kinds]
