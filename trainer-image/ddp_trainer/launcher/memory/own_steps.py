"""Tells from a pod's files and its ranks' datagrams which steps the pod holds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_trainer.launcher.memory.protocol.messages import MAX_TEXT, RankReport
from ddp_trainer.launcher.memory.store import File
from ddp_trainer.memory.volume import LARGEST_STEP, Key


@dataclass(frozen=True, kw_only=True)
class OwnStep:
    """A step that all ranks of the pod have saved."""

    step: int
    files: Sequence[File]
    """A replicated step has one file."""

    @property
    def replicated(self) -> bool:
        """True if any pod's snapshot suffices for all ranks."""
        return self.files[0].name.replicated


@dataclass(frozen=True, kw_only=True)
class Pod:
    """The ranks of this pod in one generation."""

    generation: int
    ranks: range
    world_size: int


@dataclass
class Asked:
    """Which steps the ranks of a pod wanted to save in one generation."""

    pod: Pod
    _newest: dict[int, int] = field(default_factory=dict)
    """The newest step by rank."""
    _replicated: int | None = None
    _refusals: dict[int, str] = field(default_factory=dict)

    def note(self, report: RankReport) -> None:
        """Take a rank's datagram; one of another generation, or of no rank here, is ignored."""
        if report.generation != self.pod.generation or report.rank not in self.pod.ranks:
            return
        if report.step > LARGEST_STEP:
            return
        if report.replicated:
            self._replicated = max(report.step, self._replicated or 0)
        else:
            self._newest[report.rank] = max(report.step, self._newest.get(report.rank, 0))
        self._refusals[report.rank] = report.refusal[:MAX_TEXT]

    def step(self, files: Iterable[File]) -> int | None:
        """Return the newest step that all ranks wanted, or a newer one; None: none yet.

        A rank may still write a step that another one has saved or skipped. `files`: the pod's.
        Datagrams can be lost; then a file shows that its rank was asked.
        """
        newest, replicated = dict(self._newest), self._replicated
        for name in (file.name for file in _own(files, self.pod)):
            if name.replicated:
                replicated = max(name.key.step, replicated or 0)
            else:
                newest[name.rank] = max(name.key.step, newest.get(name.rank, 0))
        sharded = min(newest.values()) if len(newest) == len(self.pod.ranks) else None
        known = [step for step in (sharded, replicated) if step is not None]
        return max(known, default=None)

    @property
    def refusal(self) -> str:
        """Why the first rank that cannot save cannot; empty: all can."""
        return next((text for _, text in sorted(self._refusals.items()) if text), "")


def own_steps(files: Iterable[File], pod: Pod) -> Mapping[int, OwnStep]:
    """Return the steps that all ranks of the pod have saved in this generation, by step."""
    found: dict[tuple[int, bool], dict[int, File]] = {}
    for file in _own(files, pod):
        found.setdefault((file.name.key.step, file.name.replicated), {})[file.name.rank] = file
    return {
        step: OwnStep(step=step, files=[of_ranks[rank] for rank in sorted(of_ranks)])
        for (step, replicated), of_ranks in sorted(found.items())
        if replicated or len(of_ranks) == len(pod.ranks)
    }


def incomplete_steps(files: Iterable[File], pod: Pod, *, asked: int | None) -> set[Key]:
    """Return the steps that only some ranks of the pod have saved, and the others skipped.

    `asked`: the newest step that all ranks wanted. Node rank 0 does not hear of such steps, and
    they would take the room of others forever.
    """
    held = own_steps(files, pod)
    keys = {file.name.key for file in _own(files, pod)}
    return {key for key in keys if key.step not in held and asked is not None and key.step <= asked}


def _own(files: Iterable[File], pod: Pod) -> Collection[File]:
    return [
        file
        for file in files
        if file.local_rank is not None
        and file.name.key.generation == pod.generation
        and file.name.rank in pod.ranks
        and file.name.world_size == pod.world_size
    ]
