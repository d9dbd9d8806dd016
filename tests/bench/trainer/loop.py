"""A step of the trainer's loop, in time, against a loop written by hand.

Both train in turns in the same two processes, on the same samples; see `loop_rank` and `bare_ddp`.
What the trainer does beside has its price in there: seeds for every step, orderly stops, time by
phases, comparing ranks, status, history.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, results_of

Pair = dict[str, dict[str, float]]
"""Loop → clock → milliseconds a step; see `loop_rank`."""

AIM_RATIO = 1.03
PAIRS = 6
"""In each repetition."""


@dataclass(frozen=True)
class Shape:
    """The workload, and the number of steps at a time."""

    workload: str
    steps: int


SHAPES = (Shape("digits", 120), Shape("gpt", 40), Shape("digits+0.006", 120))
"""The last one loads for as long as it computes: by DataLoader, with a worker for each rank."""


def measure(settings: Settings) -> Outcome:
    """Train each workload by turns."""
    rows, data, met = [], {}, []
    for shape in SHAPES:
        pairs: list[Pair] = []
        for i in range(settings.repeat):
            file = settings.scratch / f"{shape.workload}-{i}.json"
            pairs += results_of("loop_rank", shape.workload, shape.steps, PAIRS, file=file)
        rows += [_row(f"{shape.workload}, {clock}", pairs, clock) for clock in ("wall", "cpu")]
        met.append(median(_ratios(pairs, "wall")) <= AIM_RATIO)
        data[shape.workload] = {"steps": shape.steps, "millisecondsAStep": pairs}
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks, gloo, one thread each; times of rank 0",
        f"repetitions  {settings.repeat}, each of {PAIRS} pairs of both loops in turns",
        "             shown: median (min-max); ratio within a pair",
        "",
        f"{'ms a step':14}{'by hand':>22}{'trainer':>22}{'ratio':>22}",
        *rows,
        "",
        f"aim: ratio of wall time ≤ {AIM_RATIO} {'met' if all(met) else 'MISSED'}",
    ]
    return Outcome("\n".join(lines), data)


def _row(title: str, pairs: list[Pair], clock: str) -> str:
    bare, ours = ([pair[loop][clock] for pair in pairs] for loop in ("bare", "trainer"))
    cells = [spread(bare, 2), spread(ours, 2), spread(_ratios(pairs, clock), 3)]
    return f"{title:14}" + "".join(f"{cell:>22}" for cell in cells)


def _ratios(pairs: list[Pair], clock: str) -> list[float]:
    return [pair["trainer"][clock] / pair["bare"][clock] for pair in pairs]
