"""Creates the optimizer and the scheduler: the workload's own, or those of the flags."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.schedule import Course, Schedule
from ddp_trainer.run.parts import stepped
from ddp_trainer.settings.training import OptimizationOptions
from ddp_trainer.workloads.base import Workload


def optimizer_of(workload: Workload, model: nn.Module, options: OptimizationOptions) -> Optimizer:
    """Return the workload's optimizer, or AdamW.

    Raises:
        ConfigurationError: the workload returned another type.
    """
    found: object = (
        workload.optimizer(model, options.lr)
        if workload.optimizer is not None
        else torch.optim.AdamW(model.parameters(), lr=options.lr)
    )
    if not isinstance(found, Optimizer):
        raise ConfigurationError(
            f"the workload's optimizer must return a torch.optim.Optimizer, not {_kind(found)}"
        )
    if options.skip_zero_grads:
        found.register_step_pre_hook(_drop_zero_gradients)
    return found


def scheduler_of(
    workload: Workload, optimizer: Optimizer, options: OptimizationOptions, course: Course
) -> Schedule | LRScheduler:
    """Return the workload's scheduler, or that of the flags.

    Raises:
        ConfigurationError: the workload returned another type, or flags set its schedule.
    """
    if workload.scheduler is None:
        return Schedule(optimizer, options, course)
    for name in ("schedule", "warmup_steps", "min_lr_ratio"):
        if getattr(options, name) != getattr(OptimizationOptions, name):
            raise ConfigurationError(
                f"--{name.replace('_', '-')} is for the bundled schedule, but this workload has "
                "its own scheduler: remove the flag"
            )
    found: object = workload.scheduler(optimizer, course.steps_at_most)
    if isinstance(found, ReduceLROnPlateau):
        raise ConfigurationError(
            "the workload's scheduler is a ReduceLROnPlateau, which needs a score at each step: "
            "choose one that counts steps"
        )
    if not isinstance(found, LRScheduler):
        raise ConfigurationError(
            "the workload's scheduler must return a torch.optim.lr_scheduler.LRScheduler, not "
            f"{_kind(found)}"
        )
    return found


def _kind(value: object) -> str:
    return type(value).__name__


def _drop_zero_gradients(optimizer: Optimizer, *_: object) -> None:
    """Remove gradients that are entirely zero.

    An optimizer treats a zero like any other gradient: it would decay the weight and continue in
    the direction of past steps.
    """
    gradients = {p: p.grad for p in stepped(optimizer) if p.grad is not None}
    if not gradients:
        return
    # One transfer from the GPU for all of them.
    largest = torch.stack(torch._foreach_norm([*gradients.values()], float("inf")))
    for parameter, size in zip(gradients, largest.tolist(), strict=True):
        if size == 0:
            parameter.grad = None
