"""The cost of steps that have the same samples with any number of ranks.

Two ranks train in turns as DDP has it, with steps of two, three or four ranks' batches in even
shares, and with one or two logical shards to each, which are summed in one order; see
`elastic_rank`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.scripts.elastic_rank import KINDS
from tests.bench.scripts.ranks import RANKS, results_of

Round = dict[str, dict[str, float]]
"""Kind → clock → milliseconds a step."""

ROUNDS = 3
"""In each repetition."""


@dataclass(frozen=True)
class Shape:
    """The workload, and the number of steps at a time."""

    workload: str
    steps: int


SHAPES = (Shape("digits", 100), Shape("gpt", 25))


def measure(settings: Settings) -> Outcome:
    """Train each workload by turns."""
    rows, data = [], {}
    for shape in SHAPES:
        rounds: list[Round] = []
        for i in range(settings.repeat):
            file = settings.scratch / f"{shape.workload}-{i}.json"
            rounds += results_of("elastic_rank", shape.workload, shape.steps, ROUNDS, file=file)
        rows += [_row(shape, rounds, kind) for kind in KINDS]
        data[shape.workload] = {"steps": shape.steps, "millisecondsAStep": rounds}
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks, gloo, one thread each; times of rank 0",
        f"repetitions  {settings.repeat}, each of {ROUNDS} rounds of all kinds in turns",
        "             shown: median (min-max); ratio to plain DDP within a round,",
        "             for as many samples",
        "",
        f"{'ms a step':30}{'wall':>24}{'ratio':>24}",
        *rows,
    ]
    return Outcome("\n".join(lines), data)


def _row(shape: Shape, rounds: list[Round], kind: str) -> str:
    shards = KINDS[kind].shards or RANKS
    wall = [times[kind]["wall"] for times in rounds]
    ratios = [
        times[kind]["wall"] / times["plain DDP"]["wall"] / (shards / RANKS) for times in rounds
    ]
    title = f"{shape.workload}, {kind}"
    return f"{title:30}{spread(wall, 2):>24}{spread(ratios, 3):>24}"
