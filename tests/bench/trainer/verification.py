"""The cost of the checks of replicas, gradients and losses, against steps of transformers.

Two ranks train with one kind of check after every step; see `checks_rank`. Its time is compared
with that of the steps between, as if it ran at its interval. It includes the exchange with the
other rank; wall time also includes the wait for it, which is long where other programs run. So the
aim is of processor time. Copies in memory are not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, results_of

EVERY_STEPS = {"replicas": 10, "gradients": 100, "losses": 1}
"""Check → interval for the shown cost."""
AIM_SHARE, AIM_MILLISECONDS = 0.005, 100
"""Of the comparison of replicas, for steps of this processor time or longer."""
WIDTHS = (128, 192, 256)
_STEPS = 24
"""Of each check and width, in each repetition."""


@dataclass(frozen=True)
class Found:
    """One check of one model; times in milliseconds."""

    check: str
    width: int
    runs: list[dict[str, Any]]
    """Of each repetition; see `checks_rank`."""

    def times(self, what: str, clock: str = "wall") -> list[float]:
        """Return the times of steps or checks."""
        return [each for run in self.runs for each in run[what][clock]]

    def shares(self, clock: str) -> list[float]:
        """Return the part of the steps' time that the check takes, of each repetition."""
        every = EVERY_STEPS[self.check]
        return [
            median(run["checks"][clock]) / median(run["steps"][clock]) / every for run in self.runs
        ]

    def __str__(self) -> str:
        size = f"{self.runs[0]['bytes'] / 1e6:.0f}"
        shares = [f"{median(self.shares(clock)):.2%}" for clock in ("wall", "cpu")]
        return (
            f"{f'{self.check}/{EVERY_STEPS[self.check]}':15}{size:>5}"
            f"{spread(self.times('steps')):>22}{spread(self.times('checks'), 2):>20}"
            + "".join(f"{share:>9}" for share in shares)
        )


def measure(settings: Settings) -> Outcome:
    """Train each model with each check, in turns."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {
        (check, width): [] for check in EVERY_STEPS for width in WIDTHS
    }
    for _ in range(settings.repeat):
        for (check, width), some in runs.items():
            file = settings.scratch / f"{check}-{width}.json"
            some.append(results_of("checks_rank", check, width, _STEPS, file=file))
    found = [Found(check, width, some) for (check, width), some in runs.items()]
    replicas = [
        median(each.shares("cpu"))
        for each in found
        if each.check == "replicas" and median(each.times("steps", "cpu")) >= AIM_MILLISECONDS
    ]
    verdict = "met" if max(replicas, default=1.0) <= AIM_SHARE else "MISSED"
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks, gloo, one thread each; no GPU was asked",
        f"repetitions  {settings.repeat}, each of {_STEPS} steps with a check after each",
        "             shown: wall time of rank 0, median (min-max)",
        "             part: of the steps' wall and processor time, at /INTERVAL",
        "",
        f"{'check/interval':15}{'MB':>5}{'a step, ms':>22}{'a check, ms':>20}{'wall':>9}{'cpu':>9}",
        *map(str, found),
        "",
        f"aim: replicas at most {AIM_SHARE:.1%} of processor time, "
        f"with steps of {AIM_MILLISECONDS} ms or more {verdict}",
    ]
    data = {f"{each.check}-{each.width}": each.runs for each in found}
    return Outcome("\n".join(lines), data)
