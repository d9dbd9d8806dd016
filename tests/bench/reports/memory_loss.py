"""The cost of a save and of a lost pod with a large state, in each way to keep it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.bench.benchmark import BenchmarkError, Outcome, spread

RANKS = 2
FRESH = 2
"""Saves of a rank that need new memory; later ones use that of earlier ones."""
IN_MEMORY = "memory.save"
BLOCK_LOST = "memory.save, block"
"""The same state in pods of three blocks; a block is lost."""
BLOCKS = "baabac"
"""Of each of these pods. Without an order, pods of one block would hold each other's copies."""
LOST_BLOCK = "a"
"""Half of the pods, the most that the others have room for, without pod 0, which is watched."""
AIM_RATIO = 1.0
MOST_SNAPSHOTS = 4
"""Two of its own rank, two of another pod's."""
EACH_STEP = "join, FSDP2"
"""It copies each step, and saves nothing."""
AIM_SECONDS = {IN_MEMORY: 5.0, BLOCK_LOST: 5.0, "join": 1.0, EACH_STEP: 1.0}
"""From the loss to the next step, new or not, by way."""
_NOT_TIMED = (EACH_STEP, BLOCK_LOST)
"""Ways with a loss alone in the tables."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line that a rank wrote."""

    kind: str
    """A step was `done`; it was `saved` or `skipped`."""
    step: int
    rank: int
    at: float
    """When it was over: seconds since 1970."""
    seconds: float = 0.0
    """How long training waited for the save."""
    copy: float = 0.0
    """How long a copy of the same state in memory took, right before."""

    @property
    def ratio(self) -> float:
        """Return the length of the save in such copies."""
        return self.seconds / self.copy


def events(text: str) -> list[Event]:
    """Read a rank's events; a line that is being written is left out."""
    return [Event(**json.loads(line)) for line in text.rpartition("\n")[0].splitlines()]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training until the first new step after a loss."""

    events: Sequence[Event]
    """Of all ranks, each in its order."""
    lost_at: float
    """When a pod was killed."""
    complete: Mapping[int, float]
    """When saves were complete, by step."""
    most_bytes: int = 0
    """The most that a pod's volume in memory took."""
    snapshot_bytes: int = 0
    """The size of the largest file in these volumes."""
    ranks: int = RANKS

    def saves(self) -> list[Event]:
        """Return the saves of all ranks before the loss that were no skipped ones."""
        return [one for one in self.events if one.kind == "saved" and one.at < self.lost_at]

    def skipped(self) -> int:
        """Return how many saves were skipped before the loss."""
        return sum(one.kind == "skipped" and one.at < self.lost_at for one in self.events)

    def fresh(self) -> list[Event]:
        """Return the first saves of each rank."""
        return [one for saves in self._by_rank() for one in saves[:FRESH]]

    def later(self) -> list[Event]:
        """Return all other saves of each rank."""
        return [one for saves in self._by_rank() for one in saves[FRESH:]]

    def _by_rank(self) -> list[list[Event]]:
        return [[one for one in self.saves() if one.rank == rank] for rank in range(self.ranks)]

    def complete_after(self) -> list[float]:
        """Return the seconds from each save's end in the last rank until it was complete."""
        found = []
        for step, at in self.complete.items():
            ends = [one.at for one in self.saves() if one.step == step] or [
                one.at
                for one in self.events
                if (one.kind, one.step) == ("done", step) and one.at < self.lost_at
            ]
            if len(ends) == self.ranks:
                found.append(max(0.0, at - max(ends)))
        return found

    def steps(self) -> list[float]:
        """Return the seconds of the steps before the loss, without those around a save."""
        return [seconds for step, seconds in self._intervals().items() if not self._is_near(step)]

    def pauses(self) -> list[float]:
        """Return how much longer the steps around each save took, where no rank timed it."""
        usual, intervals = median(self.steps()), self._intervals()
        return [
            sum(intervals[each] for each in (step, step + 1)) - 2 * usual
            for step in self.complete
            if step in intervals and step + 1 in intervals
        ]

    def _is_near(self, step: int) -> bool:
        """The save of a step may be a part of this step, or of the next one."""
        saved = {*self.complete, *(one.step for one in self.saves())}
        return step in saved or step - 1 in saved

    def _intervals(self) -> dict[int, float]:
        done = [one for one in self._done(0) if one.at < self.lost_at]
        return {later.step: later.at - earlier.at for earlier, later in pairwise(done)}

    def _done(self, rank: int) -> list[Event]:
        return [one for one in self.events if (one.kind, one.rank) == ("done", rank)]

    def recovered(self) -> float | None:
        """Return the seconds from the loss until all ranks had done a step that none had before.

        None: they have not yet.
        """
        ranks = [self._done(rank) for rank in range(self.ranks)]
        return self._first_step(
            beyond=max(one.step for done in ranks for one in done if one.at < self.lost_at)
        )

    def resumed(self) -> float | None:
        """Return the seconds from the loss until all ranks had done a step, new or not.

        None: they have not yet.
        """
        return self._first_step(beyond=-1)

    def _first_step(self, *, beyond: int) -> float | None:
        """Return the seconds from the loss until all ranks had done a step beyond this one."""
        firsts = [
            next(
                (one.at for one in self._done(rank) if one.at > self.lost_at and one.step > beyond),
                None,
            )
            for rank in range(self.ranks)
        ]
        found = [at for at in firsts if at is not None]
        return max(found) - self.lost_at if len(found) == self.ranks else None

    def steps_again(self) -> int:
        """Return how many steps that all ranks had done were done again."""
        ranks = [self._done(rank) for rank in range(self.ranks)]
        newest = min(max(one.step for one in done if one.at < self.lost_at) for done in ranks)
        return max(
            sum(one.at > self.lost_at and one.step <= newest for one in done) for done in ranks
        )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The training that was run."""

    state_mb: int
    """Of all ranks together."""
    torch: str
    every_steps: int
    """Steps from one save to the next."""


def table(runs: Mapping[str, Sequence[Run]], subject: Subject) -> Outcome:
    """Return the figures of all runs, by way.

    Raises:
        BenchmarkError: a training did not continue after the loss, or saved too rarely before.
    """
    for way, some in runs.items():
        if any(run.recovered() is None for run in some):
            raise BenchmarkError(f"{way}: no step after the loss")
    in_memory = runs[IN_MEMORY]
    pages = -(-max(run.snapshot_bytes for run in in_memory) // _PAGE_BYTES)
    most = max(run.most_bytes for run in in_memory) / (pages * _PAGE_BYTES)
    freed = median(one.ratio for run in in_memory for one in run.later())
    lines = [
        f"torch        {subject.torch}, {RANKS} pods of one rank, gloo, one thread each",
        f"a block      {BLOCKS.count(LOST_BLOCK)} of {len(BLOCKS)} pods in blocks "
        f"{', '.join(BLOCKS)}; the same state in all",
        f"state        {subject.state_mb / RANKS:.0f} MB in each rank, saved every "
        f"{subject.every_steps} steps",
        f"repetitions  {len(in_memory)}, in turns; shown: median (min-max)",
        "",
        _row("", "pause, s", "in copies in memory", "complete after, s"),
        *(_saves(way, some) for way, some in runs.items() if way not in _NOT_TIMED),
        "",
        _row("a pod is killed", "to the next step, s", "to a new step, s", "steps done again"),
        *(_losses(way, some) for way, some in runs.items()),
        "",
        f"a step, s    {', '.join(f'{_step(some)} {way}' for way, some in runs.items())}",
        f"memory       {most:.2f} snapshots a pod at most",
        f"skipped      {sum(run.skipped() for run in in_memory)} saves in memory",
        f"aim: pause ≤ {AIM_RATIO:g} copy in a freed file {_met(freed <= AIM_RATIO)}",
        f"aim: ≤ {MOST_SNAPSHOTS} snapshots a pod {_met(most <= MOST_SNAPSHOTS)}",
        *(_aims(way, some, subject) for way, some in runs.items() if way in AIM_SECONDS),
    ]
    return Outcome("\n".join(lines), {"stateMB": subject.state_mb, "runs": runs})


def _saves(way: str, runs: Sequence[Run]) -> str:
    complete = [seconds for run in runs for seconds in run.complete_after()]
    if not any(run.saves() for run in runs):
        pauses = [each for run in runs for each in run.pauses()]
        return _row(way, _spread(pauses), "-", _spread(complete))
    rows = []
    for title, saves in (
        (f"{way}, first", [one for run in runs for one in run.fresh()]),
        (way, [one for run in runs for one in run.later()]),
    ):
        pauses, ratios = [one.seconds for one in saves], [one.ratio for one in saves]
        rows.append(_row(title, _spread(pauses), _spread(ratios), _spread(complete)))
    return "\n".join(rows)


def _losses(way: str, runs: Sequence[Run]) -> str:
    return _row(
        way,
        _spread([run.resumed() or 0.0 for run in runs]),
        _spread([run.recovered() or 0.0 for run in runs]),
        spread([float(run.steps_again()) for run in runs], 0),
    )


def _step(runs: Sequence[Run]) -> str:
    return f"{median(seconds for run in runs for seconds in run.steps()):.2f}"


def _aims(way: str, runs: Sequence[Run], subject: Subject) -> str:
    seconds, steps = AIM_SECONDS[way], subject.every_steps if way in (IN_MEMORY, BLOCK_LOST) else 0
    met = all((run.resumed() or 0.0) <= seconds and run.steps_again() <= steps for run in runs)
    return f"aim: {way} ≤ {seconds:g} s, ≤ {steps} steps again {_met(met)}"


def _met(met: bool) -> str:
    return "met" if met else "MISSED"


def _spread(seconds: Sequence[float]) -> str:
    return spread(seconds, 2) if seconds else "-"


def _row(title: str, *cells: str) -> str:
    return f"{title:20}" + "".join(f"{cell:>20}" for cell in cells)
