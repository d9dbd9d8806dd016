"""The learning rate over a run: a linear warm-up, then half a cosine or a constant.

The cosine follows the share of the run's samples that is done. A run that goes on with another
number of ranks has other steps before it, but the same samples: its rate neither jumps nor ends
before the training does. The warm-up counts optimizer steps, by whatever number of ranks, because
steps are what it waits for: the optimizer's averages are young until there were enough of them.
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
    """All samples of a run, and the steps in which the present number of ranks takes them."""

    epochs: int
    epoch_length: int
    """Samples."""
    step_size: int
    """Samples that all ranks together take in a step; the last step of an epoch takes the rest."""
    ranks: int = 1
    max_steps: int = 0
    """After which the run ends, if it has not before; 0: no such limit."""

    def by(self, ranks: int) -> Course:
        """The same samples, taken by so many ranks, each of which takes as many in a step."""
        return replace(self, step_size=self.step_size // self.ranks * ranks, ranks=ranks)

    @property
    def epoch_steps(self) -> int:
        """Steps of one epoch."""
        return math.ceil(self.epoch_length / self.step_size)

    @property
    def steps(self) -> int:
        """Steps of the whole run, were all of them taken by as many ranks as now."""
        return self.epochs * self.epoch_steps

    @property
    def steps_at_most(self) -> int:
        """The same, or the limit where that is less."""
        return min(self.steps, self.max_steps) if self.max_steps else self.steps

    def steps_of(self, epoch: int, samples: int) -> float:
        """What is done after `samples` of an epoch, in steps of this size.

        A whole number where ranks as many as now have taken all of them. An epoch's last step
        counts as a whole one, so that this over `steps` is the share of all samples that is done,
        padding included.
        """
        steps = samples / self.step_size if samples < self.epoch_length else self.epoch_steps
        return epoch * self.epoch_steps + steps

    def place_of(self, step: int) -> tuple[int, int]:
        """Epoch and samples of it after so many steps of this size."""
        epoch, steps = divmod(step, self.epoch_steps)
        return epoch, steps * self.step_size


class Schedule:
    """Sets the learning rate of each step, from where the run stands before it."""

    def __init__(self, optimizer: Optimizer, options: OptimizationOptions, course: Course) -> None:
        """The peak of each parameter group is the rate that the optimizer has now."""
        self._optimizer = optimizer
        self._options = options
        self._course = course
        self._warmed_up: tuple[int, int] | None = None
        """Epoch and samples of it when the warm-up ended; where the cosine begins."""
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def take_steps_of(self, ranks: int) -> None:
        """From here on so many ranks train."""
        self._course = self._course.by(ranks)

    def set_rates(self, position: Position) -> None:
        """Set those of the step that begins at `position`."""
        factor = self._factor(position)
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def state_dict(self) -> dict[str, Any]:
        """Where the warm-up ended, if it has: all else follows from the run's position."""
        return {
            "warmup_steps": self._options.warmup_steps,
            "warmed_up": list(self._warmed_up) if self._warmed_up is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        A warm-up of another length, if it is over, counts as if ranks as many as now had trained
        through it.
        """
        self._warmed_up = None
        if state["warmup_steps"] == self._options.warmup_steps and state["warmed_up"]:
            epoch, samples = state["warmed_up"]
            self._warmed_up = int(epoch), int(samples)

    def _factor(self, position: Position) -> float:
        """The rate of the step after `position`, as a part of its peak."""
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
        if self._course.max_steps:  # what comes first is the end
            left = max(1, self._course.max_steps - warmup_steps)
            share = max(share, (position.step - warmup_steps) / left)
        return cosine(share, least=self._options.min_lr_ratio)


def cosine(done: float, *, least: float) -> float:
    """Half a cosine from 1 to `least`, after a part of the way from 0 to 1."""
    height = (1 + math.cos(math.pi * min(1.0, done))) / 2
    return least + (1 - least) * height
