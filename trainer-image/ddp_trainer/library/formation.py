"""The groups that a job's ranks form one after another; other code never sees one break."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import BrokenGroupError, LostPeerError, MovedError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.checks.verification import Verification
from ddp_trainer.library.progress import FINAL_WAIT_SECONDS
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.steps.net import Exchange
from ddp_trainer.process_group.teardown import release_last_group
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.run.stop import StopSignal, Votes
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options

if TYPE_CHECKING:
    from ddp_trainer.library.sharded.snapshots import Snapshots

_logger = logging.getLogger(__name__)

_TEARDOWN_SECONDS = 10.0
"""Time for the threads of a group that all ranks left in order; they end at once."""


class Formation:
    """The present group, and its replacement when it breaks.

    After a collective fails, call `form`. It returns when a new group has formed and all of its
    ranks have the state of the most advanced one.
    """

    def __init__(
        self,
        world: GroupFormer,
        run: TrainState,
        checkpoint_manager: CheckpointManager,
        stop: StopSignal,
        script: ScriptCollectives,
        options: Options,
        snapshots: Snapshots | None = None,
        verification: Verification | None = None,
    ) -> None:
        """`run`: the state that all ranks train.

        `snapshots`, `verification`: of this rank's part, if the models are sharded.
        """
        self.run = run
        self._world = world
        self._checkpoint_manager = checkpoint_manager
        self._stop = stop
        self._script = script
        self.snapshots = snapshots
        self.verification = verification or Verification(
            run,
            every_steps=options.verify_replicas,
            probe_every_steps=options.verify_gradients,
        )
        """Of this rank's replica and gradients."""
        self._reform_limit = ReformLimit(options.max_reforms)
        self._seconds = options.rendezvous_timeout_seconds
        self._formed: AbstractContextManager[Group] | None = None
        self._group: Group | None = None
        self._votes: Votes | None = None
        self.exchange = Exchange(run.models, snapshots)
        """The exchange of the present group's ranks in each step."""

    @property
    def group(self) -> Group:
        """The present group; unusable once the exchange is in `trouble`."""
        assert self._group is not None, "the job is not formed"
        return self._group

    @property
    def votes(self) -> Votes:
        """Votes of the present group."""
        assert self._votes is not None, "the job is not formed"
        return self._votes

    @property
    def is_open(self) -> bool:
        """Return whether this rank is in a group."""
        return self._formed is not None

    @property
    def has_state(self) -> bool:
        """Return whether there is a state to save."""
        return not self.run.is_fresh

    def form(self, error: Exception | None, *, when_broken: Callable[[], None]) -> None:
        """Form the first group, or the next one after `error` in the present one.

        Raises:
            Exception: the error itself if it does not mean a broken group, or the reason why no
                other group could form.
        """
        while True:
            has_moved = isinstance(error, MovedError)
            try:
                self._form_once(error)
                return
            except BrokenGroupError as broken:
                error = broken
                if not self.is_open:  # it was left, or did not form
                    when_broken()
                    self._account_for(broken, has_moved=has_moved)
                    error = None
            except Exception as failure:
                if not self.is_open:
                    raise
                error = failure

    def _account_for(self, broken: BrokenGroupError, *, has_moved: bool) -> None:
        step = self.run.position.step
        if self._world.current_assignment.is_outdated():
            return  # a change of groups is no failure; it is logged where it happens
        if has_moved:
            _logger.info("other pods report a change of the group: leaving it at step %d", step)
        else:
            self._reform_limit.count(step=step, reason=str(broken))

    def shorten_waits(self) -> None:
        """Shorten all waits, because everything is saved."""
        self._seconds = min(self._seconds, FINAL_WAIT_SECONDS)

    def close(self) -> None:
        """Leave a group that all ranks leave."""
        self._release()
        formed, self._formed = self._formed, None
        if formed is not None:
            formed.__exit__(None, None, None)
        self.exchange.close()
        self._group = self._votes = None  # the teardown waits for the last reference
        release_last_group().join(_TEARDOWN_SECONDS)

    def abandon(self, error: BaseException) -> None:
        """Leave the group, if there is one, because of an error outside of it."""
        with suppress(BaseException):
            self._give_up(error)

    def _form_once(self, error: Exception | None) -> None:
        if error is not None:
            self._give_up(error)
        formed = self._world.formed(timeout_seconds=self._seconds, told_to_stop=self._stop.told)
        self._group = group = formed.__enter__()
        self._formed = formed
        self.exchange.enter(group)
        self._script.enter(group)  # first: parts of a model need the group of their mesh
        in_loop = self._script.place[0] in ("step", "after a step")
        if self.snapshots is None:
            had_state = self._checkpoint_manager.agree(self.run, group)
        else:
            had_state = self.has_state
            self.snapshots.agree(group)
        self.verification.begin(group, had_state=had_state, may_return=in_loop)
        self._stop.listen()  # there is a state to save from now on
        self.exchange.form(self.run.shard_assignment(rank=group.rank, size=group.size))
        self._votes = Votes(
            group,
            stop=self._stop.vote,
            save=self._checkpoint_manager.is_overdue,
            leave=self._world.current_assignment.is_outdated,
        )

    def _release(self) -> None:
        """Release what belongs to the group, before this rank leaves it."""
        self.exchange.leave()
        if self.snapshots is not None:
            self.snapshots.leave()
        self._script.leave()

    def _give_up(self, error: BaseException) -> None:
        """Leave the group; raise BrokenGroupError if the error means that, otherwise the error."""
        self._release()
        formed, self._formed = self._formed, None
        if formed is not None:
            formed.__exit__(type(error), error, error.__traceback__)
        raise error


class ReformLimit:
    """The number of times that a group may break in a row without progress."""

    def __init__(self, max_reforms: int) -> None:
        self._max_reforms = max_reforms
        self._step = 0
        self._in_a_row = 0

    def count(self, *, step: int, reason: str) -> None:
        """Count a group that broke after `step` complete steps.

        Raises:
            LostPeerError: the limit is exceeded.
        """
        if step > self._step:
            self._step, self._in_a_row = step, 0
        if self._in_a_row >= self._max_reforms:
            raise LostPeerError(
                f"gave up after {self._in_a_row} re-forms in a row without progress: {reason} "
                "(--max-reforms sets how many)"
            )
        self._in_a_row += 1
        _logger.info(
            "the group broke at step %d (%s): forming it again from memory, "
            "attempt %d of at most %d without progress",
            step,
            reason,
            self._in_a_row,
            self._max_reforms,
        )
