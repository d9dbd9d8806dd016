"""False reports of ranks that compare their replicas after each step without a flipped bit.

In the last run a bit flips in one rank: a comparison that finds nothing would prove nothing.
`--repeat 500` compares a million steps.
"""

from __future__ import annotations

import time

import torch

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, run_script

STEPS = 2000
"""In each repetition."""
_FLIP_AT = STEPS // 2
_REPORT = "the ranks differ after step"


def measure(settings: Settings) -> Outcome:
    """Compare, and count what is reported."""
    reports, took = 0, []
    for _ in range(settings.repeat):
        began = time.monotonic()
        reports += _reports(settings, flip_at=0)
        took.append(STEPS / (time.monotonic() - began))
    if not _reports(settings, flip_at=_FLIP_AT):
        raise BenchmarkError(f"a bit flipped after step {_FLIP_AT}, and no rank reported it")
    compared = settings.repeat * STEPS
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks, gloo, one thread each; no GPU was asked",
        f"repetitions  {settings.repeat}, each of {STEPS} steps: BatchNorm, dropout, AdamW",
        f"             {spread(took, 0)} steps a second with start, median (min-max)",
        "",
        f"compared     {compared} steps",
        f"reported     {reports} without a flipped bit; one bit flipped: reported",
        "",
        f"aim: none reported {'met' if not reports else 'MISSED'}",
    ]
    return Outcome("\n".join(lines), {"compared": compared, "reports": reports})


def _reports(settings: Settings, *, flip_at: int) -> int:
    """Train; return how many lines of the log report a difference."""
    log = settings.scratch / "log"
    run_script("compared_rank", STEPS, flip_at, log=log)
    text = log.read_text()
    if text.count(f"completed {STEPS} steps") != RANKS:
        raise BenchmarkError(f"the ranks did not complete {STEPS} steps: {text[-1000:]}")
    return text.count(_REPORT)
