"""Applies a step once its gradients are complete: learning rates, clipping, new weights, position.

Nothing here waits for another rank, so whenever a collective fails, a run is at a boundary between
steps.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.buffers import Copies
from ddp_trainer.run.parts import stepped
from ddp_trainer.run.position import BEFORE_TRAINING, Position, before_epoch

if TYPE_CHECKING:
    from ddp_trainer.run.train_state import TrainState

SchedulerInterval = Literal["step", "epoch"]


class Updates:
    """Updates of a run by its optimizers, schedules and scaler, which step only here."""

    def __init__(self, run: TrainState, *, scheduler_interval: SchedulerInterval) -> None:
        """`scheduler_interval`: unit in which torch's schedulers count."""
        self._run = run
        self._parts = run.parts
        self._scheduler_interval = scheduler_interval
        self._schedulers = [*self._parts.schedulers, *self._parts.plateaus]
        self._may_step = False
        self._stepped: list[object] = []
        """What each scheduler had counted after the last step here; empty: not known."""
        for optimizer in self._parts.optimizers:
            optimizer.register_step_pre_hook(self._expect_gate)

    def begin(self) -> None:
        """Note that other states may have been loaded."""
        self._stepped = self._counts()

    def complete_step(
        self, samples: int, *, ends_epoch: bool = False, clip_grad_norm: float | None = None
    ) -> None:
        """Take a step with the averaged gradients of `samples` samples, padding included.

        The gradients must be complete.
        """
        run = self._run
        self.apply(run.position, run.optimizers, clip_grad_norm, ends_step=True, score=run.score)
        self._advance(samples, ends_epoch=ends_epoch)

    def skip_step(self, before: Copies, samples: int, *, ends_epoch: bool = False) -> None:
        """Count a step without applying it, so that its samples do not come again.

        Buffers return to `before`. Optimizers and scaler stay as they are; schedulers step, so that
        the rates of later steps are those of their position.
        """
        self._run.passes.take_back(before)
        with _without_optimizer():  # the first step of all may be skipped
            self.apply(self._run.position, [], None, ends_step=True, score=self._run.score)
        self._advance(samples, ends_epoch=ends_epoch, is_skipped=True)

    def take_turn(self, optimizer: Optimizer, *, clip_grad_norm: float | None = None) -> None:
        """Step with one of several optimizers; `complete_turns` completes the step."""
        run = self._run
        self.apply(run.position, [optimizer], clip_grad_norm, ends_step=False, score=run.score)
        run.position.turns += 1

    def complete_turns(self, samples: int, *, ends_epoch: bool = False) -> None:
        """Complete a step in which several optimizers took turns, on `samples` samples."""
        self.apply(self._run.position, [], None, ends_step=True)
        self._advance(samples, ends_epoch=ends_epoch)

    def _advance(self, samples: int, *, ends_epoch: bool, is_skipped: bool = False) -> None:
        run, position = self._run, self._run.position
        length = run.order.samples if run.epoch_samples is None else run.epoch_samples
        advance(position, samples, epoch_length=length, is_skipped=is_skipped)
        if ends_epoch:
            position.end(epoch_length=length)
        if run.answers:
            kept = {BEFORE_TRAINING, before_epoch(position.epoch)}
            for place in run.answers.keys() - kept:
                del run.answers[place]
        run.score = None

    def count_time(self) -> float:
        """Count the time since the group's previous step; return the time, of a complete step."""
        run, now = self._run, time.monotonic()
        if run.stepped_at is not None and run.trained_seconds is not None:
            run.trained_seconds += now - run.stepped_at
        run.stepped_at = now
        return now

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


def advance(
    position: Position, samples: int, *, epoch_length: int, is_skipped: bool = False
) -> None:
    """Count a step on `samples` samples over all ranks, padding included.

    `epoch_length`: samples of the epoch; 0: unknown. `is_skipped`: the step is not applied.
    """
    position.step += 1
    position.skipped = position.skipped + 1 if is_skipped else 0
    position.skipped_in_all += is_skipped
    position.turns = 0
    position.samples += samples
    if 0 < epoch_length <= position.samples:
        position.end(epoch_length=epoch_length)


@contextlib.contextmanager
def _without_optimizer() -> Iterator[None]:
    """Let schedulers step in this block before an optimizer has done so in this process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
