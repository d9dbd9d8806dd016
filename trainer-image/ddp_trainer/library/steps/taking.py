"""Takes steps: tries each until the gradients of all ranks are complete, then applies it.

The life of a step, batch by batch (see docs/concepts/life-of-a-step.md):

1. `begin`: between two steps, duties that are due begin (`Duties`), such as a vote. Buffers are
   copied, because the step may have to be undone.
2. The script receives its batches (`Loop`), computes, and calls `step` after each of them.
3. `take` waits for the gradients of all ranks. If the group broke, the step is undone, another
   group forms, and the same batches come again, or those of the step where the others are.
4. Otherwise optimizers, scaler and schedulers step, and the step counts. The script's own work
   after `step` still belongs to it.
5. `settle`: when the script asks for the next batch, or calls another method of the job, the duties
   after the step follow: comparisons, saves, the log, and the results of votes.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.data.batches import Rest
from ddp_trainer.data.sampler import SampleTrace, Share
from ddp_trainer.data.stream import Stream, StreamRest
from ddp_trainer.exit_codes import ConfigurationError, MovedError
from ddp_trainer.library.answers import Answers
from ddp_trainer.library.checks.first_step import FirstStep
from ddp_trainer.library.checks.loss_watch import LossWatch, find
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
        self._loss_watch = LossWatch()
        self.first_step = FirstStep()
        self.duties = Duties(session)
        self.attempt: Attempt | None = None
        """The step, or the probe, that is being tried."""
        self.taken: Attempt | None = None
        """The previous step, until `settle` has completed it."""
        self.is_in_loop = False
        """True while the script is in the loop over an epoch's batches."""

    def begin_group(self) -> None:
        """Note that a group has formed."""
        self._trace.rank = self._session.rank
        self.first_step.is_due = True
        self.duties.ask_again()

    def begin(self, share: Share, rest: Rest | StreamRest) -> Attempt:
        """Begin to try a step on this rank's share of its samples."""
        session, position = self._session, self._session.run.position
        step, has_end = position.step, rest.has_end
        if step >= self.duties.next_step or has_end is not None:
            formation = session.formation
            formation.verification.keep()
            try:
                formation.votes.begin(step, begins_epoch=position.samples == 0, has_end=has_end)
                self.duties.plan(step, is_first=self.first_step.is_due)
            except Exception as error:
                formation.note(error)
        own = share.own
        if self._trace.path is not None:
            self._trace.write(step=step + 1, epoch=position.epoch, samples=own)
        self.attempt = Attempt(
            before=session.run.passes.before(),
            assignment=session.assignment,
            samples=share.samples,
            sizes=share.counts,
            ends_epoch=rest.is_at_end,
            own=own,
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
        if optimizer is not None:
            return take_turn(
                self._session, self.first_step, attempt, optimizer, loss, clip_grad_norm
            )
        if attempt.turns > 0:
            raise RuntimeError(
                "job.step() was called for all optimizers after one of them has stepped: name one "
                "in each call, as in job.step(loss, optimizer=optimizer)"
            )
        return self._take(attempt, loss, clip_grad_norm)

    def _take(
        self, attempt: Attempt, loss: Tensor | float | None, clip_grad_norm: float | None
    ) -> bool:
        session = self._session
        run, formation = session.run, session.formation
        if loss is None and session.options.skip_nonfinite_steps:
            raise ConfigurationError(
                "skip_nonfinite_steps needs the loss of each batch: pass it, as in job.step(loss)"
            )
        is_last = attempt.stepped_with(loss)
        if isinstance(attempt, Probe):
            attempt.end_pass(run, session.timer, loss)
            return False
        if not is_last:
            if not attempt.assignment.is_plain:
                run.passes.forget_unscaling()
            return False
        if attempt.buffers is not None:
            run.passes.set_buffers(attempt.buffers)
        have_come = (
            formation.wait_for_gradients()
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
            run.skip_step(attempt.before, attempt.samples, ends_epoch=attempt.ends_epoch)
        else:
            if self.first_step.is_due:
                self.first_step.begin(run, formation)
            run.complete_step(
                attempt.samples, ends_epoch=attempt.ends_epoch, clip_grad_norm=clip_grad_norm
            )
        if not formation.is_step_whole():
            self._try_again()
            return False
        self._complete(attempt)
        return not attempt.is_skipped

    def end_turns(self, attempt: Attempt) -> None:
        """Complete a step in which optimizers took turns, or try it again."""
        if self._session.formation.trouble is not None or (
            attempt.is_asked and not self._knows_the_end(attempt)
        ):
            self._try_again()
            return
        self._session.run.complete_turns(attempt.samples, ends_epoch=attempt.ends_epoch)
        self._complete(attempt)

    def _knows_the_end(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if the epoch ends with the step."""
        formation = self._session.formation
        try:
            formation.votes.read()
        except Exception as error:
            formation.note(error)
            return False
        attempt.ends_epoch = formation.votes.has_end
        return True

    def _knows_losses(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if all ranks skip the step."""
        most = self._session.options.skip_nonfinite_steps
        position, formation = self._session.run.position, self._session.formation
        group = formation.group
        try:
            own = find(position.step + 1, group.rank, attempt.losses_told, attempt.own)
            found = of_all_ranks(own, group)
        except Exception as error:
            formation.note(error)
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
        session.form(session.formation.trouble)

    def _complete(self, attempt: Attempt) -> None:
        session, run = self._session, self._session.run
        position = run.position
        attempt.taken_in = session.groups
        self.attempt = None
        session.formation.end_step()
        self._answers.received.clear()
        session.script.stepped(position.step, epoch=position.epoch)
        now = run.count_time()
        session.progress.step(
            position,
            samples=attempt.samples * session.length.samples_a_place,
            trained_seconds=run.trained_seconds,
        )
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
        session = self._session
        session.timer.lap(Phase.COMPUTE)
        position = session.run.position
        if not attempt.is_skipped:
            self._loss_watch.note((position.step, attempt.losses_told, attempt.own))
        if (
            position.step >= self.duties.next_step
            or attempt.ends_epoch
            or attempt.is_asked
            or not self.is_in_loop
        ):
            session.or_form(lambda: self._do_duties(attempt))

    def _do_duties(self, attempt: Attempt) -> None:
        session = self._session
        run, formation, length = session.run, session.formation, session.length
        position, votes = run.position, formation.votes
        votes.read()
        saves, leaves = self.saves(), votes.stop or votes.leave
        is_last = self.verify(attempt, is_needed=saves or leaves)
        self.first_step.check(run, formation, length.loading)
        if saves or leaves or self.is_at_end(attempt):
            formation.equalise_buffers()
            if isinstance(length.loading, Stream):
                length.loading.bookmark(formation.group)
        if (snapshots := formation.snapshots) is not None:
            snapshots.take()
            if leaves or is_last:
                snapshots.confirm()
        if saves:
            session.checkpoint_manager.save(run)
            session.timer.lap(Phase.CHECKPOINT)
        if session.progress.wants_interval(position):
            seconds = session.progress.interval(
                position,
                attempt.losses(),
                formation.group,
                shards=attempt.assignment.shards,
                watch=self._loss_watch,
            )
            votes.pace(seconds)
        if votes.stop:
            session.save_and_stop()
        if votes.leave:
            raise MovedError("the group changes")

    def verify(self, attempt: Attempt, *, is_needed: bool = False) -> bool:
        """Compare the ranks, if it is time; return whether the script cannot repeat the step."""
        # The script does not return to a step after which it leaves the loop.
        is_last = self.is_at_end(attempt) or not self.is_in_loop
        formation = self._session.formation
        if formation.verification.check(
            formation.group,
            gradients=attempt.gradients,
            is_needed=is_needed,
            is_last=is_last,
            may_return=self.is_in_loop,
        ):
            self._session.timer.lap(Phase.COMMUNICATION)
        return is_last

    def saves(self) -> bool:
        """Return whether all ranks save after this step, by votes that they have read."""
        is_due = self._session.checkpoint_manager.is_due(self._session.run.position.step)
        return self._session.formation.votes.save or is_due

    def is_at_end(self, attempt: Attempt) -> bool:
        """Return whether the epoch, or the training, ends with a step."""
        return attempt.ends_epoch or self._session.length.is_at_limit(self._session.run.position)
