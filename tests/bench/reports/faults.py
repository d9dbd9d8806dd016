"""The cost of repeated faults for a training: their order, and the table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Literal

from tests.bench.benchmark import BenchmarkError, Outcome, spread


@dataclass(frozen=True)
class Fault:
    """A fault of the pod of a node rank."""

    kind: Literal["delete pod", "kill rank"]
    node_rank: int


FAULTS = (
    Fault("delete pod", 0),
    Fault("kill rank", 1),
    Fault("delete pod", 1),
    Fault("kill rank", 0),
)
"""In turns; the first ones are a pod and a process already, one of them rank 0's."""


@dataclass(frozen=True)
class Pace:
    """How often a fault comes, and how long the training is that it comes to."""

    every_seconds: int
    steps: int

    def faults(self, repetition: int) -> Iterator[tuple[int, Fault]]:
        """Seconds since all ranks began to train, and the fault that comes then; without an end.

        Each repetition begins two faults further on, so that two of them see all four even where
        only two faults fit in.
        """
        for number in count():
            fault = FAULTS[(number + 2 * repetition) % len(FAULTS)]
            yield (number + 1) * self.every_seconds, fault


@dataclass(frozen=True)
class Run:
    """One training, from the moment when all ranks train to the job's success."""

    seconds: float
    faults: int = 0
    """How many hit something."""
    finished: bool = True
    """False: it failed, or was stopped, after so many seconds."""


@dataclass(frozen=True)
class Pair:
    """A training under faults, and the same way's left alone."""

    alone: Run
    disturbed: Run

    @property
    def ratio(self) -> float:
        """How many times as long it takes; where it was given up, at least.

        Raises:
            BenchmarkError: no fault hit it, so there is no result.
        """
        if not self.disturbed.faults:
            raise BenchmarkError(f"no fault hit anything: {self}")
        return self.disturbed.seconds / self.alone.seconds


Found = Mapping[str, Mapping[Pace, Sequence[Pair]]]
"""By way and pace."""


def table(found: Found, aims: Mapping[str, float]) -> Outcome:
    """Say how many times as long each way takes; ways without an aim are there to compare with."""
    paces = list(next(iter(found.values())))
    lines = [
        f"{'':14}"
        + "".join(f"{f'a fault every {pace.every_seconds} s':>25}" for pace in paces)
        + f"{'aim':>14}",
        f"{'way':14}" + f"{'times as long':>19}{'hit':>6}" * len(paces),
    ]
    for way, by_pace in found.items():
        cells = "".join(_cell(pairs) for pairs in by_pace.values())
        lines.append(f"{way:14}{cells}{_verdict(by_pace, aims.get(way)):>14}".rstrip())
    data = {
        way: {pace.every_seconds: pairs for pace, pairs in by_pace.items()}
        for way, by_pace in found.items()
    }
    return Outcome("\n".join(lines), data)


def _cell(pairs: Sequence[Pair]) -> str:
    given_up = any(not pair.disturbed.finished for pair in pairs)
    ratios = (">" if given_up else "") + spread([pair.ratio for pair in pairs], 2)
    return f"{ratios:>19}{spread_of_counts([pair.disturbed.faults for pair in pairs]):>6}"


def spread_of_counts(counts: Sequence[int]) -> str:
    """`3`, or `3-4` where they differ."""
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"


def _verdict(by_pace: Mapping[Pace, Sequence[Pair]], aim: float | None) -> str:
    if aim is None:
        return ""
    met = all(
        all(pair.disturbed.finished for pair in pairs)
        and median(pair.ratio for pair in pairs) <= aim
        for pairs in by_pace.values()
    )
    return f"{aim:.2f} {'met' if met else 'MISSED'}"
