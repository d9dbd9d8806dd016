"""From averaged gradients to new parameters, by the workload's own optimizer if it brings one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.schedule import Course, Schedule
from ddp_trainer.settings.training import OptimizationOptions
from ddp_trainer.workloads.base import Workload

if TYPE_CHECKING:
    from ddp_trainer.run.run import Position


class Optimization:
    """Optimizer, learning rate and scaler; every rank does the same with the same gradients."""

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: Schedule | LRScheduler,
        *,
        scaler: torch.amp.GradScaler | None = None,
        clip_grad_norm: float | None = None,
        skip_zero_grads: bool = False,
    ) -> None:
        """What the limits mean is told by the flags of the same names.

        One of torch's schedulers counts the steps that the optimizer takes.
        """
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self._clip_grad_norm = clip_grad_norm
        self._skip_zero_grads = skip_zero_grads

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradients `step` expects."""
        return self.scaler.scale(loss) if self.scaler is not None else loss

    def step(self, position: Position) -> None:
        """Apply the gradients of the step that begins at `position`; waits for no other rank."""
        if isinstance(self.scheduler, Schedule):
            self.scheduler.before_step(position)
        # Limits are meant for true gradients, not for scaled ones.
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self._clip_grad_norm is not None:
            clip_grad_norm_(self._with_gradients(), self._clip_grad_norm)
        if self._skip_zero_grads:
            _drop_zero_gradients(self._with_gradients())
        if self.scaler is None:
            self.optimizer.step()
        else:
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scaler.get_scale() < scale:
                return  # the gradients were too large for fp16, and no step was taken
        if isinstance(self.scheduler, LRScheduler):
            self.scheduler.step()

    def has_other_scheduler(self, state: dict[str, Any]) -> bool:
        """Whether a saved scheduler's state means nothing to a scheduler of torch's here."""
        return isinstance(self.scheduler, LRScheduler) and "last_epoch" not in state

    def _with_gradients(self) -> list[Tensor]:
        return [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]


def optimizer_of(workload: Workload, model: nn.Module, options: OptimizationOptions) -> Optimizer:
    """The workload's own, or AdamW.

    Raises:
        ConfigurationError: what the workload brings is none.
    """
    if workload.optimizer is None:
        return torch.optim.AdamW(model.parameters(), lr=options.lr)
    found: object = workload.optimizer(model, options.lr)
    if not isinstance(found, Optimizer):
        raise ConfigurationError(
            f"the workload's optimizer must return a torch.optim.Optimizer, not {_kind(found)}"
        )
    return found


def scheduler_of(
    workload: Workload, optimizer: Optimizer, options: OptimizationOptions, course: Course
) -> Schedule | LRScheduler:
    """The workload's own, or that of the flags.

    Raises:
        ConfigurationError: what the workload brings is none, or does not do what flags ask for.
    """
    if workload.scheduler is None:
        return Schedule(optimizer, options, course)
    for name in ("schedule", "warmup_steps", "min_lr_ratio"):
        if getattr(options, name) != getattr(OptimizationOptions, name):
            raise ConfigurationError(
                f"--{name.replace('_', '-')} is for the bundled schedule, and this workload brings "
                "a scheduler of its own: leave it out"
            )
    found: object = workload.scheduler(optimizer, course.steps_at_most)
    if isinstance(found, ReduceLROnPlateau):
        raise ConfigurationError(
            "the workload's scheduler is a ReduceLROnPlateau, which wants a score at each step: "
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


def _drop_zero_gradients(parameters: list[Tensor]) -> None:
    """Let the optimizer see no gradient where all of it is zero.

    To an optimizer a zero is a gradient like any other: it would decay the weight and go on in the
    direction of past steps.
    """
    if not parameters:
        return
    # One transfer from the GPU for all of them.
    largest = torch.stack(torch._foreach_norm([_gradient(p) for p in parameters], float("inf")))
    for parameter, size in zip(parameters, largest.tolist(), strict=True):
        if size == 0:
            parameter.grad = None


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
