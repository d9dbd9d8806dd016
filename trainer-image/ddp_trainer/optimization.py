"""From averaged gradients to new parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Optimization:
    """Optimizer, learning rate and scaler; every rank does the same with the same gradients."""

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        *,
        scaler: torch.amp.GradScaler | None = None,
        clip_grad_norm: float | None = None,
        skip_zero_grads: bool = False,
    ) -> None:
        """What the limits mean is told by the flags of the same names."""
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self._clip_grad_norm = clip_grad_norm
        self._skip_zero_grads = skip_zero_grads

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradients `step` expects."""
        return self.scaler.scale(loss) if self.scaler is not None else loss

    def step(self) -> None:
        """Apply the gradients; waits for no other rank."""
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
        self.scheduler.step()

    def _with_gradients(self) -> list[Tensor]:
        return [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]


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
