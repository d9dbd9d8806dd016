"""Applies a step once its gradients are complete: learning rates, clipping, and new weights."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.parts import Parts, stepped
from ddp_trainer.run.position import Position

SchedulerInterval = Literal["step", "epoch"]


class Updates:
    """Updates of a run's models by its optimizers, schedules and scaler; they step only here."""

    def __init__(self, parts: Parts, *, scheduler_interval: SchedulerInterval) -> None:
        """`scheduler_interval`: unit in which torch's schedulers count."""
        self._parts = parts
        self._scheduler_interval = scheduler_interval
        self._schedulers = [*parts.schedulers, *parts.plateaus]
        self._may_step = False
        self._stepped: list[object] = []
        """What each scheduler had counted after the last step here; empty: not known."""
        for optimizer in parts.optimizers:
            optimizer.register_step_pre_hook(self._expect_gate)

    def forget_unscaling(self) -> None:
        """Forget that the script unscaled gradients: the step uses other ones."""
        scaler = self._parts.scaler
        if scaler is not None and scaler.is_enabled():
            scaler._per_optimizer_states.clear()  # it would treat the new ones as unscaled

    def apply(
        self,
        position: Position,
        optimizers: Sequence[Optimizer],
        clip_grad_norm: float | None,
        *,
        ends_step: bool,
        score: float | None = None,
    ) -> None:
        """Step with these optimizers at a position; `ends_step`: none follows in this step.

        `score`: result of an evaluation since the previous step; higher is better.

        Raises:
            ConfigurationError: the script stepped a scheduler.
        """
        if self._schedulers:
            self._expect_own_steps()
        for schedule in self._parts.schedules:
            schedule.set_rates(position)
        begins_epoch = position.epoch > 0 and position.samples == 0 and position.turns == 0
        # With the epoch's first step, not at the end of the previous epoch: states there exist with
        # and without an evaluation, and they must not differ.
        if begins_epoch and score is not None:
            for plateau in self._parts.plateaus:
                plateau.step(score if plateau.mode == "max" else -score)
        if self._scheduler_interval == "epoch" and begins_epoch:
            with _without_optimizer():  # its steps may have happened in another process
                for scheduler in self._parts.schedulers:
                    scheduler.step()
        if clip_grad_norm is not None:
            self._clip(optimizers, clip_grad_norm)
        self._may_step = True
        try:
            is_taken = self._step(optimizers)
        finally:
            self._may_step = False
        if is_taken and ends_step and self._scheduler_interval == "step":
            for scheduler in self._parts.schedulers:
                scheduler.step()
        if self._schedulers:
            self._stepped = self._counts()
        for optimizer in self._parts.optimizers:
            optimizer.zero_grad()

    def begin(self) -> None:
        """Note that other states may have been loaded."""
        self._stepped = self._counts()

    def skip(self, position: Position, *, score: float | None) -> None:
        """Step only with the schedulers, and clear the gradients; see `apply`."""
        with _without_optimizer():  # the first step of all may be skipped
            self.apply(position, [], None, ends_step=True, score=score)

    def _clip(self, optimizers: Sequence[Optimizer], norm: float) -> None:
        scaler = self._parts.scaler
        if scaler is not None:  # the limit applies to unscaled gradients
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        clip_grad_norm_([*stepped(*optimizers)], norm)

    def _step(self, optimizers: Sequence[Optimizer]) -> bool:
        """Return whether the optimizers took the step: gradients may be too large for fp16."""
        scaler = self._parts.scaler
        if scaler is None or not optimizers:
            for optimizer in optimizers:
                optimizer.step()
            return True
        scale = scaler.get_scale()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale() >= scale

    def _counts(self) -> list[object]:
        """Return how often each scheduler has stepped."""
        return [getattr(each, "last_epoch", None) for each in self._schedulers]

    def _expect_own_steps(self) -> None:
        if self._stepped and self._stepped != self._counts():
            raise ConfigurationError(
                "scheduler.step() was called: remove it, because job.step() and job.evaluated() "
                "step the schedulers that join() got"
            )

    def _expect_gate(self, *_: object) -> None:
        if not self._may_step:
            raise ConfigurationError(
                "optimizer.step() was called: call job.step() instead, which does it when the "
                "gradients of all ranks are complete"
            )


@contextlib.contextmanager
def _without_optimizer() -> Iterator[None]:
    """Let schedulers step in this block before an optimizer has done so in this process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
