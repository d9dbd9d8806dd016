"""The rare duties between two steps, and when the next one is due.

All ranks have the same duties after the same step: each is due by the number of the step, or by a
vote, which is a duty itself. So a step without one only compares its number with `next_step`.
"""

from __future__ import annotations

from ddp_trainer.library.session import Session

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
        self.next_step: float = 0
        """Something may be due after the step of this number, and before the following one."""
        self.next_time = 0.0
        """When this rank looks for requests and new checkpoints, by itself (monotonic)."""

    def do_own(self, now: float) -> None:
        """Do after a step what concerns this rank alone, because it is time."""
        session = self._session
        session.progress.look_for_checkpoint()
        session.profiling.step()
        self.next_time = now if session.profiling.is_running else now + _LOOK_SECONDS

    def ask_again(self) -> None:
        """Ask for all duties after the next step: the group, or the loop, is a new one."""
        self.next_step = 0

    def plan(self, step: int, *, is_first: bool) -> None:
        """Find the next step with a duty, now that those after `step` are done.

        `is_first`: the following step is the first one of a group, or of new data.
        """
        session, options = self._session, self._session.options
        formation = session.formation
        if is_first or formation.snapshots is not None:
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
