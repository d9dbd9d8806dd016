"""This pod's part in one generation of the group: what it copies, and what it reports. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ddp_trainer.launcher.memory.copying import Copy
from ddp_trainer.launcher.memory.leading import LeadingMemory
from ddp_trainer.launcher.memory.own_steps import Asked, OwnStep, Pod
from ddp_trainer.launcher.memory.protocol.messages import MAX_TEXT, Held, KeysReport, Target
from ddp_trainer.launcher.memory.restoring import Restoring
from ddp_trainer.launcher.memory.retention import Retention
from ddp_trainer.launcher.memory.store import File
from ddp_trainer.memory.volume import Key
from ddp_trainer.process_group.assignment import Assignment


@dataclass(kw_only=True)
class GenerationMemory:
    """The state of one generation in this pod."""

    assignment: Assignment
    pod: Pod
    restoring: Restoring
    leading: LeadingMemory | None
    """None: another pod is node rank 0."""
    copies: int
    """How many pods should hold a copy."""
    asked: Asked
    targets: tuple[Target, ...] = ()
    """The pods for copies of this pod's snapshots; empty: node rank 0 did not name them yet."""
    sources: tuple[int, ...] = ()
    """Node ranks of the pods of which this pod holds copies; empty: not known."""
    refusal: str = ""
    """Why a copy was given up; empty: none was since the newest complete step."""
    reported: KeysReport | None = None
    """The newest report that node rank 0 has answered."""
    due: float = 0.0
    """When to report again."""

    def pending(self, steps: Mapping[int, OwnStep], retention: Retention) -> list[OwnStep]:
        """Return the steps that this pod holds and that are not complete, the oldest first."""
        generation = self.pod.generation
        return [own for own in steps.values() if retention.is_pending(Key(generation, own.step))]

    def announced(self, pending: Iterable[OwnStep]) -> list[OwnStep]:
        """Return the steps that node rank 0 knows of: `targets` are those of its answer."""
        known = {one.step for one in self.reported.held} if self.reported else set()
        return [own for own in pending if own.step in known]

    def wanted_copies(self, pending: Iterable[OwnStep]) -> list[Copy]:
        """Return the copies that other pods should have, the most urgent first."""
        return [
            Copy(file.name, target)
            for own in pending
            if not own.replicated
            for file in own.files
            for target in self.targets
        ]

    def restored_copies(self, files: Iterable[File], retention: Retention) -> list[Copy]:
        """Return the copies of what the ranks resumed from: with a pod, its copies were lost."""
        restored = self.restoring.result(wait_seconds=0)
        if restored is None or restored.key is None or restored.key != retention.complete:
            return []
        names = {
            file.name
            for file in files
            if file.name.key == restored.key
            and file.name.rank in self.pod.ranks
            and not file.name.replicated
        }
        return [
            Copy(name, target)
            for name in sorted(names, key=lambda name: name.rank)
            for target in self.targets
        ]

    def report(
        self,
        steps: Mapping[int, OwnStep],
        files: Iterable[File],
        is_done: Callable[[Copy], bool],
        retention: Retention,
    ) -> KeysReport:
        """Return the report for node rank 0. `is_done`: tells whether the other pod has a copy."""
        held = [
            Held(
                step=own.step,
                replicated=own.replicated,
                copied=len(self.targets) == self.copies
                and all(map(is_done, self.wanted_copies([own]))),
                bytes=sum(file.size for file in own.files),
            )
            for own in self.pending(steps, retention)
        ]
        refusal = self.asked.refusal or self.refusal
        if self.reported and held and len(self.targets) < self.copies:
            refusal = "node rank 0 named no pods for the copies"
        return KeysReport(
            job_uid=self.assignment.job_uid,
            attempt=self.assignment.attempt,
            generation=self.pod.generation,
            node_rank=self.assignment.node_rank or 0,
            asked=self.asked.step(files),
            held=tuple(held),
            refusal=refusal[:MAX_TEXT],
        )
