"""Takes steps: tries each until the gradients of all ranks are complete, then applies it.

The life of a step, batch by batch (see docs/concepts/life-of-a-step.md):

1. `begin`: between two steps, duties that are due begin (`Duties`), such as a vote. Buffers are
   copied (`Passes`), because the step may have to be undone.
2. The script receives its batches (`Loop`, `Rest`), computes with a `Net`, and calls `step` after
   each of them.
3. `_take` waits for the gradients of all ranks (`Exchange`, `Gate`). If the group broke, the step
   is undone, another group forms (`Formation`), and the same batches come again, or those of the
   step where the others are.
4. Otherwise optimizers, scaler and schedulers step, and the step counts (`Updates`). The script's
   own work after `step` still belongs to it.
5. `settle`: when the script asks for the next batch, or calls another method of the job, the duties
   after the step follow: comparisons, saves, the log, and the results of votes.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.data.batches import Rest
from ddp_trainer.data.sampler import SampleTrace, Share
from ddp_trainer.data.stream import StreamRest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.answers import Answers
from ddp_trainer.library.checks.loss_watch import find
from ddp_trainer.library.checks.probe import Probe
from ddp_trainer.library.checks.skipped_steps import must_skip, of_all_ranks
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps.attempt import Attempt
from ddp_trainer.library.steps.duties import Duties
from ddp_trainer.library.steps.turns import take_turn
from ddp_trainer.telemetry.timing import Phase


class Steps:
    """The steps of one rank, one after the other."""

    def __init__(self, session: Session, answers: Answers) -> None:
        """Take steps with the groups of a session; `answers` belong to the places between them."""
        self._session = session
        self._answers = answers
        self._trace = SampleTrace(session.options.trace_samples, rank=session.rank)
        self.duties = Duties(session)
        self.attempt: Attempt | None = None
        """The step, or the probe, that is being tried."""
        self.taken: Attempt | None = None
        """The previous step, until `settle` has completed it."""

    def begin_group(self) -> None:
        """Note that a group has formed."""
        self._trace.rank = self._session.rank
        self.duties.first_step.is_due = True
        self.duties.ask_again()

    def begin(self, share: Share, rest: Rest | StreamRest) -> Attempt:
        """Begin to try a step on this rank's share of its samples."""
        session, position = self._session, self._session.run.position
        has_end = rest.has_end
        if position.step >= self.duties.next_step or has_end is not None:
            self.duties.begin(has_end=has_end)
        if self._trace.path is not None:
            self._trace.write(step=position.step + 1, epoch=position.epoch, samples=share.own)
        self.attempt = Attempt(
            before=session.run.passes.before(),
            assignment=session.assignment,
            samples=share.samples,
            sizes=share.counts,
            batches=len(share.counts),
            ends_epoch=rest.is_at_end,
            own=share.own,
            is_asked=has_end is not None,
        )
        return self.attempt

    def step(
        self, loss: Tensor | float | None, optimizer: Optimizer | None, clip_grad_norm: float | None
    ) -> bool:
        """Take the step after its last batch, or an optimizer's turn; see `Job.step`."""
        attempt = self.attempt
        if attempt is None or (attempt.stepped == attempt.given and attempt.turns == 0):
            raise RuntimeError(
                "job.step() was called without a batch: call it once after each batch of "
                "job.batches()"
            )
        if clip_grad_norm is not None and not clip_grad_norm > 0:
            raise ConfigurationError(
                f"job.step() got clip_grad_norm={clip_grad_norm:g}, which would clear all "
                "gradients: leave it out to clip nothing"
            )
        if optimizer is None and attempt.turns > 0:
            raise RuntimeError(
                "job.step() was called for all optimizers after one of them has stepped: name one "
                "in each call, as in job.step(loss, optimizer=optimizer)"
            )
        if loss is not None:
            note_loss(attempt, loss)
        if optimizer is not None:
            first_step = self.duties.first_step
            return take_turn(self._session, first_step, attempt, optimizer, loss, clip_grad_norm)
        return self._take(attempt, loss, clip_grad_norm)

    def _take(
        self, attempt: Attempt, loss: Tensor | float | None, clip_grad_norm: float | None
    ) -> bool:
        session = self._session
        run, exchange = session.run, session.formation.exchange
        if loss is None and session.options.skip_nonfinite_steps:
            raise ConfigurationError(
                "skip_nonfinite_steps needs the loss of each batch: pass it, as in job.step(loss)"
            )
        attempt.stepped += 1
        if isinstance(attempt, Probe):
            attempt.end_pass(run, session.timer, loss)
            return False
        if attempt.stepped < attempt.batches:
            if not attempt.assignment.is_plain:
                run.passes.forget_unscaling()
            return False
        if attempt.buffers is not None:
            run.passes.set_buffers(attempt.buffers)
        have_come = (
            exchange.wait_for_gradients()
            and (not attempt.is_asked or self._knows_the_end(attempt))
            and (not session.options.skip_nonfinite_steps or self._knows_losses(attempt))
        )
        session.timer.note(Phase.COMMUNICATION)
        run.passes.end(are_undone=not have_come)
        if not have_come:
            run.passes.take_back(attempt.before)
            self._try_again()
            return False
        if attempt.is_skipped:
            run.updates.skip_step(attempt.before, attempt.samples, ends_epoch=attempt.ends_epoch)
        else:
            if self.duties.first_step.is_due:
                self.duties.first_step.begin(run, session.formation)
            run.updates.complete_step(
                attempt.samples, ends_epoch=attempt.ends_epoch, clip_grad_norm=clip_grad_norm
            )
        if not exchange.is_step_whole():
            self._try_again()
            return False
        self._complete(attempt)
        return not attempt.is_skipped

    def end_turns(self, attempt: Attempt) -> None:
        """Complete a step in which optimizers took turns, or try it again."""
        if self._session.formation.exchange.trouble is not None or (
            attempt.is_asked and not self._knows_the_end(attempt)
        ):
            self._try_again()
            return
        self._session.run.updates.complete_turns(attempt.samples, ends_epoch=attempt.ends_epoch)
        self._complete(attempt)

    def _knows_the_end(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if the epoch ends with the step."""
        formation = self._session.formation
        try:
            formation.votes.read()
        except Exception as error:
            formation.exchange.note(error)
            return False
        attempt.ends_epoch = formation.votes.has_end
        return True

    def _knows_losses(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if all ranks skip the step."""
        most = self._session.options.skip_nonfinite_steps
        position, formation = self._session.run.position, self._session.formation
        group = formation.group
        try:
            own = find(position.step + 1, group.rank, attempt.losses, attempt.own)
            found = of_all_ranks(own, group)
        except Exception as error:
            formation.exchange.note(error)
            return False
        attempt.is_skipped = must_skip(
            found, in_a_row=position.skipped, most=most, logs=group.rank == 0
        )
        return True

    def _try_again(self) -> None:
        """Form a new group, in which the step's batches come again."""
        session = self._session
        self.attempt = None
        session.script.come_to("after a step", session.run.position.step)
        session.form(session.formation.exchange.trouble)

    def _complete(self, attempt: Attempt) -> None:
        session, run = self._session, self._session.run
        position = run.position
        attempt.taken_in = session.groups
        self.attempt = None
        session.formation.exchange.end_step()
        self._answers.received.clear()
        script = session.script
        if script.only_steps:
            script.place = "after a step", position.step
        else:
            script.stepped(position.step, epoch=position.epoch)
        now = run.updates.count_time()
        progress = session.progress
        session.report.step[0] = position.step
        if attempt.is_skipped:
            progress.skipped(position)
        progress.samples += attempt.samples * session.length.samples_a_place
        progress.steps.append((position.step, now, run.trained_seconds))
        if now >= self.duties.next_time:
            self.duties.do_own(now)
        self.taken = attempt

    def settle(self) -> None:
        """Complete the previous step: votes, saves and the log.

        Not within the script's call of `step`, because the script's own work after that call, such
        as averaging weights, belongs to the step too.
        """
        if self.attempt is not None:  # a probe of the gradients comes first
            return
        attempt, self.taken = self.taken, None
        if attempt is None:
            return
        session, duties, position = self._session, self.duties, self._session.run.position
        session.timer.lap(Phase.COMPUTE)
        if not attempt.is_skipped:
            duties.loss_watch.note((position.step, attempt.losses, attempt.own))
        if (
            position.step >= duties.next_step
            or attempt.ends_epoch
            or attempt.is_asked
            or not duties.is_in_loop
        ):
            session.or_form(lambda: duties.do(attempt))


def note_loss(attempt: Attempt, loss: Tensor | float) -> None:
    """Note the loss of the last batch of a step, if the batch counts."""
    if attempt.sizes[attempt.given - 1]:
        attempt.losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        attempt.slots.append(attempt.slot)
