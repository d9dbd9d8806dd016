"""The learning rate over a run: a linear warm-up, then half a cosine or a constant."""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ddp_trainer.training_options import OptimizationOptions


def scheduler(optimizer: Optimizer, options: OptimizationOptions, *, total_steps: int) -> LambdaLR:
    """A scheduler that is to be stepped after each optimizer step."""
    return LambdaLR(
        optimizer, functools.partial(lr_factor, options=options, total_steps=total_steps)
    )


def lr_factor(step: int, *, options: OptimizationOptions, total_steps: int) -> float:
    """The learning rate of the optimizer step after `step` others, as a part of its peak."""
    if step < options.warmup_steps:
        return (step + 1) / (options.warmup_steps + 1)
    if options.schedule == "constant":
        return 1.0
    length = max(1, total_steps - options.warmup_steps)
    done = min(1.0, (step - options.warmup_steps) / length)
    cosine = (1 + math.cos(math.pi * done)) / 2
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * cosine
