"""What comparing the replicas of all ranks costs, against steps of transformers of several sizes.

A check reads all parameters and optimizer states once. Shown is its part of 10 steps, in processor
time of one thread. The exchange of a few bytes is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from ddp_trainer.library.verification import compared
from ddp_trainer.run.fingerprint import sum_of_bits
from torch import nn

from tests.bench.benchmark import Outcome, Settings, spread

EVERY_STEPS = 10
AIM_SHARE = 0.005
WIDTHS = (128, 256, 512)
_LAYERS, _BATCH, _TOKENS = 6, 8, 64
_TURNS = 5
"""Of a step and a check, in each repetition."""


def measure(settings: Settings) -> Outcome:
    """Take steps and check in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {width: _measure(width, settings.repeat * _TURNS) for width in WIDTHS}
    finally:
        torch.set_num_threads(threads)
    shares = {
        width: median(checks) / (EVERY_STEPS * median(steps))
        for width, (_, steps, checks) in found.items()
    }
    lines = [
        f"torch        {torch.__version__}, one thread, CPU; no GPU was asked",
        f"repetitions  {settings.repeat}, each of {_TURNS} steps and checks in turns",
        "             shown: median (min-max)",
        "",
        f"{'width':7}{'state, MB':>10}{'a step, ms':>22}{'a check, ms':>22}{'of 10 steps':>13}",
        *(
            f"{width:<7}{size / 1e6:>10.0f}{spread(steps):>22}{spread(checks, 2):>22}"
            f"{shares[width]:>13.2%}"
            for width, (size, steps, checks) in found.items()
        ),
        "",
        f"aim: at most {AIM_SHARE:.1%} of {EVERY_STEPS} steps "
        f"{'met' if max(shares.values()) <= AIM_SHARE else 'MISSED'}",
    ]
    data = {
        str(width): {"bytes": size, "stepMilliseconds": steps, "checkMilliseconds": checks}
        for width, (size, steps, checks) in found.items()
    }
    return Outcome("\n".join(lines), data)


def _measure(width: int, turns: int) -> tuple[int, list[float], list[float]]:
    """Return the bytes of the state, and the milliseconds of steps and checks."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(_BATCH, _TOKENS, width)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    state = partial(compared, [model], [optimizer])
    step()
    pairs = [
        (_milliseconds(step), _milliseconds(lambda: sum_of_bits(state()))) for _ in range(turns)
    ]
    steps, checks = zip(*pairs, strict=True)
    return sum(tensor.nbytes for tensor in state()), list(steps), list(checks)


def _milliseconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * 1e3
