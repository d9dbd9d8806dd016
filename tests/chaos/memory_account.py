"""Compares the steps from which ranks resumed with those that the status called complete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tests.chaos.record import Sighting

_DECIDED_SECONDS = 2.0
"""A loss is noted when its command returns; the launchers may know of it so much sooner."""


@dataclass(frozen=True)
class Start:
    """A line of `memory_training.py`: a rank has its state."""

    rank: int
    generation: int
    """Of the group that starts."""
    step: int
    """It resumes after this step; 0: it has no snapshot."""
    saved_in: int | None
    """The generation that saved the snapshot."""
    of_rank: int
    """The rank that saved it."""
    whole: bool
    """All of the snapshot is of that step and rank."""
    pod: str
    time: float

    @classmethod
    def all_in(cls, folder: Path) -> list[Self]:
        """Read the files of all ranks."""
        return [cls(**line) for line in lines(folder, "starts.*")]


@dataclass(frozen=True)
class Loss:
    """A pod that was lost, with its memory."""

    time: float
    pod: str


@dataclass(frozen=True)
class MemoryAccount:
    """All that happened to the memory checkpoints of one job."""

    copies: int
    ranks: int
    starts: Sequence[Start]
    losses: Sequence[Loss]
    sightings: Sequence[Sighting]

    def complaints(self) -> list[str]:
        """Return what must not be; nothing when all is well."""
        return [*self._about_mixtures(), *self._about_old_steps()]

    def _about_mixtures(self) -> Iterator[str]:
        for start in self.starts:
            if not start.whole or start.of_rank != start.rank:
                yield f"a rank loaded a state that is not its own: {start}"
        for generation, starts in self._generations.items():
            if len({(start.step, start.saved_in) for start in starts}) > 1:
                yield f"ranks of generation {generation} resumed from different steps: {starts}"

    def _about_old_steps(self) -> Iterator[str]:
        for generation, step in self.resumed.items():
            if step < self.bounds[generation]:
                yield (
                    f"generation {generation} resumed at step {step}, but step "
                    f"{self.bounds[generation]} was complete; losses: {self.losses}; "
                    f"complete: {self.sightings}"
                )

    @cached_property
    def resumed(self) -> Mapping[int, int]:
        """Return the step at which each generation resumed, if its ranks came so far."""
        return {generation: starts[0].step for generation, starts in self._generations.items()}

    @cached_property
    def bounds(self) -> Mapping[int, int]:
        """The newest step that each generation must have found.

        That is what the status called complete before, unless more pods than there are copies were
        lost since then.
        """
        return {generation: self._bound(generation) for generation in self._generations}

    def _bound(self, generation: int) -> int:
        begin = min(start.time for start in self._generations[generation])
        found = 0
        for seen in self.sightings:
            record = seen.record
            if record.step is None or record.time is None or seen.seconds > begin:
                continue
            if (record.step, record.time) == (record.restored_step, record.restored_at):
                continue  # it was complete some time before
            complete = record.time.timestamp()
            lost = {
                loss.pod
                for loss in self.losses
                if loss.time - _DECIDED_SECONDS < begin and self._settled(loss) > complete
            }
            if len(lost) <= self.copies:
                found = max(found, record.step)
        return found

    def _settled(self, loss: Loss) -> float:
        """Return when all ranks had started in a group without the pod; infinity: never."""
        for starts in self._generations.values():
            if (
                len(starts) == self.ranks
                and all(start.time > loss.time for start in starts)
                and loss.pod not in {start.pod for start in starts}
            ):
                return max(start.time for start in starts)
        return float("inf")

    @cached_property
    def _generations(self) -> Mapping[int, Sequence[Start]]:
        found = defaultdict(list)
        for start in self.starts:
            found[start.generation].append(start)
        return dict(sorted(found.items()))


def ends(folder: Path) -> dict[int, tuple[str, str]]:
    """Return the last loss of each rank and the digest of all its state."""
    return {line["rank"]: (line["loss"], line["digest"]) for line in lines(folder, "ends.*")}


def lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Return what ranks have noted in these files."""
    files = sorted(folder.glob(pattern))
    # A rank may be killed while it writes its last line.
    return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]
