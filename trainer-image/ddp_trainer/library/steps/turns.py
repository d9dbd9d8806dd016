"""Lets several optimizers take turns in a step, where their turns can be repeated."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.checks.first_step import FirstStep
from ddp_trainer.library.checks.probe import Probe
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps.attempt import Attempt
from ddp_trainer.telemetry.timing import Phase


def take_turn(
    session: Session,
    first_step: FirstStep,
    attempt: Attempt,
    optimizer: Optimizer,
    loss: Tensor | float | None,
    clip_grad_norm: float | None,
) -> bool:
    """Step with one of several optimizers; return False if it must step again.

    Raises:
        ConfigurationError: its turn could not be repeated.
    """
    run, formation = session.run, session.formation
    _check_turn(session, optimizer)
    turn, attempt.stepped = attempt.turns, attempt.batches
    attempt.turns += 1
    if isinstance(attempt, Probe):
        attempt.end_pass(run, session.timer, loss, in_turn=True)
        return False
    have_come = formation.exchange.wait_for_gradients(in_turn=True)
    session.timer.note(Phase.COMMUNICATION)
    is_due = turn >= run.position.turns  # otherwise it was taken before the group broke
    run.passes.end(are_undone=not (have_come and is_due))
    if not (have_come and is_due):
        run.passes.take_back(attempt.before, in_turn=True)
        return False
    first_step.begin(run, formation)
    run.updates.take_turn(optimizer, clip_grad_norm=clip_grad_norm)
    attempt.before = run.passes.before()
    return True


def _check_turn(session: Session, optimizer: Optimizer) -> None:
    batch = session.batch
    if not any(optimizer is known for known in session.run.optimizers):
        raise ConfigurationError(
            "step() got an optimizer that join() does not know: name it there, as in "
            "join(model=model, optimizer=optimizer, ...), so that its state can be saved"
        )
    if session.formation.snapshots is not None:
        raise ConfigurationError(
            "step(optimizer=...) takes turns, which sharded models cannot: call job.step() "
            "once for all optimizers"
        )
    if batch.is_fixed:
        raise ConfigurationError(
            f"step(optimizer=...) takes turns with one batch, but {batch.name} may split "
            f"it: {batch.remedy}"
        )
    if session.length.accumulate > 1:
        raise ConfigurationError(
            "step(optimizer=...) and batches(accumulate=...) cannot be combined: remove one"
        )
    if session.options.skip_nonfinite_steps > 0:
        raise ConfigurationError(
            "step(optimizer=...) and skip_nonfinite_steps cannot be combined: a turn may have "
            "been taken when a loss is not finite; remove skip_nonfinite_steps"
        )
