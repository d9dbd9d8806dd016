"""The rare duties between two steps, and when the next one is due.

All ranks have the same duties after the same step: each is due by the number of the step, or by a
vote, which is a duty itself. So a step without one only compares its number with `next_step`.
"""

from __future__ import annotations

from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import MovedError
from ddp_trainer.library.checks.first_step import FirstStep
from ddp_trainer.library.checks.loss_watch import LossWatch
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps.attempt import Attempt
from ddp_trainer.telemetry.timing import Phase

_LOOK_SECONDS = 0.1


class Duties:
    """The step after which something is due; between such steps nothing is asked.

    | duty | due after |
    |---|---|
    | comparison of the ranks' first step | the first step of a group, or of a loop |
    | vote: stop, save, leave the group | about 0.25 s of steps; its result a step later |
    | save | `checkpoint_every_steps`, or a vote |
    | log line, with losses and times of all ranks | `log_every_steps`, and the last step |
    | comparison of replicas, of gradients | `verify_replicas`, `verify_gradients`, each save |
    | snapshot of a sharded model | each step |

    The end of an epoch, or of the training, is known from the step itself: everything is asked.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.first_step = FirstStep()
        self.loss_watch = LossWatch()
        self.next_step: float = 0
        """Something may be due after the step of this number, and before the following one."""
        self.next_time = 0.0
        """When this rank publishes steps and looks for requests, by itself (monotonic)."""
        self.is_in_loop = False
        """True while the script is in the loop over an epoch's batches."""

    def ask_again(self) -> None:
        """Ask for all duties after the next step: the group, or the loop, is a new one."""
        self.next_step = self.next_time = 0.0

    def do_own(self, now: float) -> None:
        """Do after a step what concerns this rank alone, because it is time."""
        session = self._session
        session.progress.catch_up()
        session.progress.look_for_checkpoint()
        session.profiling.step()
        self.next_time = now if session.profiling.is_running else now + _LOOK_SECONDS

    def begin(self, *, has_end: bool | None) -> None:
        """Begin before a step what is due after it; `has_end`: see `Votes.begin`."""
        formation, position = self._session.formation, self._session.run.position
        formation.verification.keep()
        try:
            begins_epoch = position.samples == 0
            formation.votes.begin(position.step, begins_epoch=begins_epoch, has_end=has_end)
            self._plan(position.step)
        except Exception as error:
            formation.exchange.note(error)

    def _plan(self, step: int) -> None:
        """Find the next step with a duty, now that those after `step` are done."""
        session, options = self._session, self._session.options
        formation = session.formation
        if self.first_step.is_due or formation.snapshots is not None:
            self.next_step = step + 1
            return
        intervals = [
            options.checkpoint_every_steps,
            options.log_every_steps,
            options.verify_replicas,
            options.verify_gradients,
        ]
        by_number = (step - step % every + every for every in intervals if every > 0)
        ends = session.length.max_steps, session.progress.total_steps or 0
        by_length = (end for end in ends if end > step)
        self.next_step = min(formation.votes.next_step, *by_number, *by_length)

    def do(self, attempt: Attempt) -> None:
        """Do what is due after a step; a collective."""
        session = self._session
        run, formation, length = session.run, session.formation, session.length
        position, votes = run.position, formation.votes
        votes.read()
        saves, leaves = self.saves(), votes.stop or votes.leave
        is_last = self.verify(attempt, is_needed=saves or leaves)
        self.first_step.check(run, formation, length.loading)
        if saves or leaves or self.is_at_end(attempt):
            formation.exchange.equalise_buffers()
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
                attempt.losses_of_parts(),
                formation.group,
                shards=attempt.assignment.shards,
                watch=self.loss_watch,
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
