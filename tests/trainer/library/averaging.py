"""A script that averages its weights and counts after each step; both belong to the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.trainer.library import script


class Count:
    """A count of steps and a sum over them."""

    def __init__(self) -> None:
        self.steps = 0
        self.total = torch.zeros((), dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.total = state["steps"], state["total"]


class Average(script.Extra):
    """The average of the weights, and a count."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        average = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self.count = Count()
        self.parts = {"average": self.average, "count": self.count}

    def after_step(self, steps_done: int) -> None:
        """Add the step to both."""
        self.average.update_parameters(self.model)
        self.count.steps += 1
        self.count.total += next(self.average.parameters()).detach().abs().sum().double()
        assert self.count.steps == steps_done


def main(arguments: Sequence[str]) -> None:
    script.main(arguments, extra_of=Average)
