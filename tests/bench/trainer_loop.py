"""A step of the trainer's loop, in time, against a loop written by hand.

Both train in turns in the same two processes, on the same samples; see `loop_rank` and `bare_ddp`.
What the trainer does beside has its price in there: seeds for every step, orderly stops, time by
phases, comparing ranks, status, history.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.ranks import environment, run_to_the_end

AIM_RATIO = 1.03
PAIRS = 6
"""In each repetition."""


@dataclass(frozen=True)
class Shape:
    """What is trained, for how many steps at a time."""

    workload: str
    steps: int


SHAPES = (Shape("digits", 120), Shape("gpt", 40))


def measure(settings: Settings) -> Outcome:
    """Train each workload by turns."""
    rows, data, met = [], {}, []
    for shape in SHAPES:
        pairs = []
        for i in range(settings.repeat):
            results = settings.scratch / f"{shape.workload}-{i}.json"
            pairs += _train(shape, results)
        ratios = [ours / bare for bare, ours in pairs]
        met.append(median(ratios) <= AIM_RATIO)
        rows.append(
            f"{shape.workload:10}"
            f"{spread([bare for bare, _ in pairs], 2):>22}"
            f"{spread([ours for _, ours in pairs], 2):>22}"
            f"{spread(ratios, 3):>24}"
        )
        data[shape.workload] = {"steps": shape.steps, "millisecondsAStep": pairs}
    lines = [
        f"torch        {torch.__version__}, 2 ranks, gloo, one thread each",
        f"repetitions  {settings.repeat}, each of {PAIRS} pairs of both loops in turns",
        "             shown: median (min-max); ratio within a pair",
        "",
        f"{'ms a step':10}{'by hand':>22}{'trainer':>22}{'ratio':>24}",
        *rows,
        "",
        f"aim: ratio ≤ {AIM_RATIO} {'met' if all(met) else 'MISSED'}",
    ]
    return Outcome("\n".join(lines), data)


def _train(shape: Shape, results: Path) -> list[tuple[float, float]]:
    program = ["-m", "tests.bench.loop_rank", shape.workload, str(shape.steps), str(PAIRS)]
    launched = ["-m", "ddp_trainer.launch", "--", sys.executable, *program, str(results)]
    run_to_the_end(launched, environment(), log=results.with_suffix(".log"))
    return [(bare, ours) for bare, ours in json.loads(results.read_text())]
