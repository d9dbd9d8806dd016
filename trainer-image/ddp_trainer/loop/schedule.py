"""The learning rate over a run: a linear warm-up, then half a cosine or a constant.

The cosine follows the share of the run's samples that is done. A run that continues with another
number of ranks has another number of steps left, but the same samples, so its rate does not jump
and does not reach its end early. The warm-up counts optimizer steps, with any number of ranks,
because the optimizer's averages need a number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch.optim import Optimizer

from ddp_trainer.run.position import Position
from ddp_trainer.settings.training import OptimizationOptions


@dataclass(frozen=True, kw_only=True)
class Course:
    """All samples of a run, and the steps in which the present number of ranks trains on them."""

    epochs: int
    epoch_length: int
    """Samples in an epoch."""
    step_size: int
    """Samples of a step over all ranks; the last step of an epoch takes the rest."""
    ranks: int = 1
    max_steps: int = 0
    """Limit of steps, after which the run ends; 0: none."""

    def by(self, ranks: int) -> Course:
        """Return the course of the same samples with another number of ranks."""
        return replace(self, step_size=self.step_size // self.ranks * ranks, ranks=ranks)

    @property
    def epoch_steps(self) -> int:
        """Return the steps of one epoch."""
        return math.ceil(self.epoch_length / self.step_size)

    @property
    def steps(self) -> int:
        """Return the steps of the whole run, if all were taken with the present number of ranks."""
        return self.epochs * self.epoch_steps

    @property
    def steps_at_most(self) -> int:
        """Return the same, or the limit if that is lower."""
        return min(self.steps, self.max_steps) if self.max_steps else self.steps

    def steps_of(self, epoch: int, samples: int) -> float:
        """Return the progress after `samples` of an epoch, in steps of this size.

        It is a whole number if the present number of ranks has taken all steps. An epoch's last
        step counts as a whole one, so that this divided by `steps` is the share of all samples that
        is done, padding included.
        """
        steps = samples / self.step_size if samples < self.epoch_length else self.epoch_steps
        return epoch * self.epoch_steps + steps

    def place_of(self, step: int) -> tuple[int, int]:
        """Return the epoch, and the samples in it, after a number of steps of this size."""
        epoch, steps = divmod(step, self.epoch_steps)
        return epoch, steps * self.step_size


class Schedule:
    """Sets the learning rate of each step from the position of the run before it."""

    def __init__(self, optimizer: Optimizer, options: OptimizationOptions, course: Course) -> None:
        """The optimizer's present rate is the peak of each parameter group."""
        self._optimizer = optimizer
        self._options = options
        self._course = course
        self._warmed_up: tuple[int, int] | None = None
        """Epoch, and samples in it, at the end of the warm-up, where the cosine begins."""
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def take_steps_of(self, ranks: int) -> None:
        """Note that this number of ranks trains from now on."""
        self._course = self._course.by(ranks)

    def set_rates(self, position: Position) -> None:
        """Set the rates of the step that begins at `position`."""
        factor = self._factor(position)
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def state_dict(self) -> dict[str, Any]:
        """Return the end of the warm-up, if reached; the rest follows from the run's position."""
        return {
            "warmup_steps": self._options.warmup_steps,
            "warmed_up": list(self._warmed_up) if self._warmed_up is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        A completed warm-up of another length counts as if the present number of ranks had trained
        through it.
        """
        self._warmed_up = None
        if state["warmup_steps"] == self._options.warmup_steps and state["warmed_up"]:
            epoch, samples = state["warmed_up"]
            self._warmed_up = int(epoch), int(samples)

    def _factor(self, position: Position) -> float:
        """Return the rate of the step after `position`, as a fraction of its peak."""
        warmup_steps = self._options.warmup_steps
        if position.step < warmup_steps:
            return (position.step + 1) / (warmup_steps + 1)
        if position.step == warmup_steps:
            self._warmed_up = position.epoch, position.samples
        elif self._warmed_up is None:
            self._warmed_up = self._course.place_of(warmup_steps)
        if self._options.schedule == "constant":
            return 1.0
        begin = self._course.steps_of(*self._warmed_up)
        done = self._course.steps_of(position.epoch, position.samples) - begin
        share = done / max(1, self._course.steps - begin)
        if self._course.max_steps:  # the earlier end counts
            left = max(1, self._course.max_steps - warmup_steps)
            share = max(share, (position.step - warmup_steps) / left)
        return cosine(share, least=self._options.min_lr_ratio)


def cosine(done: float, *, least: float) -> float:
    """Return half a cosine from 1 to `least`; `done`: progress from 0 to 1."""
    height = (1 + math.cos(math.pi * min(1.0, done))) / 2
    return least + (1 - least) * height
