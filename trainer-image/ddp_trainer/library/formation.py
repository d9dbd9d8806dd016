"""The groups that a job's ranks form one after another; other code never sees one break."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.exit_codes import BrokenGroupError, MovedError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.checks.verification import Verification
from ddp_trainer.library.progress import FINAL_WAIT_SECONDS
from ddp_trainer.library.reform_limit import ReformLimit
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.steps.net import Net
from ddp_trainer.library.steps.shared_buffers import SharedBuffers
from ddp_trainer.process_group.failures import is_lost_peer
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
    ) -> None:
        """`run`: the state that all ranks train.

        `snapshots`: of this rank's part, if the models are sharded.
        """
        self.run = run
        self._world = world
        self._checkpoint_manager = checkpoint_manager
        self._stop = stop
        self._script = script
        self.snapshots = snapshots
        self.verification = Verification(
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
        self._buffers = SharedBuffers(run.models)
        self.nets: list[Net] = []
        """Models that exchange gradients, in the order in which all ranks have wrapped them."""
        self.trouble: Exception | None = None
        """The error that broke the group, until `form` handles it."""

    @property
    def group(self) -> Group:
        """The present group; unusable once there is `trouble`."""
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

    def wrap(self, net: Net) -> None:
        """Exchange the gradients of another model."""
        self.nets.append(net)
        net.form(self.group, self._shard_assignment)

    def renew_nets(self) -> None:
        """Exchange the gradients of the parameters that are trained now."""
        for net in self.nets:
            if net.is_outdated:
                net.form(self.group, self._shard_assignment)

    def note(self, error: Exception) -> None:
        """Note that the group is broken: this rank computes alone until it would take the step."""
        self.trouble = error
        for net in self.nets:
            net.leave()

    def wait_for_gradients(self, *, in_turn: bool = False) -> bool:
        """Wait for the gradients of all ranks; return whether the step can be taken.

        False if the group broke. `in_turn`: the script may still use what earlier passes computed.

        Raises:
            ConfigurationError: see `Net.check_gradients`.
        """
        group = self.group
        if self.trouble is None:
            for net in self.nets:
                net.finish()
        if self.trouble is None:
            for net in self.nets:
                net.check_gradients()
            try:
                if self._buffers.shared and self._shares_buffers:
                    # After the step, not before the next: all surviving ranks then have rank 0's.
                    self._buffers.share(group, in_turn=in_turn)
                group.gate.wait()
                if self.snapshots is not None:
                    self.snapshots.confirm()
                    self.snapshots.leave_step()
            except Exception as error:
                self._note_lost_peer(error)
        return self.trouble is None

    def is_step_whole(self) -> bool:
        """Return whether the step that was applied counts: its collectives, if any, are complete.

        Parts of a sharded model are clipped, and some optimizers apply them, with all ranks.
        """
        if self.snapshots is not None:
            try:
                self.group.gate.wait()
            except Exception as error:
                self._note_lost_peer(error)
        return self.trouble is None

    def _note_lost_peer(self, error: Exception) -> None:
        if not (is_lost_peer(error) or self.group.is_broken):
            raise error
        self.note(error)

    def begin_probe(self) -> None:
        """Prepare a pass in which no gradients are averaged; a collective.

        All ranks then have rank 0's buffers, so that they compute the same.
        """
        self.end_step()
        try:
            self.equalise_buffers()
        except Exception as error:
            self._note_lost_peer(error)

    def end_step(self) -> None:
        """Average no gradients until the next batch of a step."""
        for net in self.nets:
            net.state.exchanges = False

    def agree_on_buffers(self) -> None:
        """Find out which buffers all ranks have now; a collective."""
        if self.snapshots is None:
            self._buffers.agree(self.group)

    def equalise_buffers(self) -> None:
        """Give all ranks the same buffers; a collective.

        Needed before one rank's state counts for all: before a save or an evaluation. Of a sharded
        model, each rank keeps its own.
        """
        if self.group.size > 1 and not self._shares_buffers and self.snapshots is None:
            self._buffers.share(self.group)

    def shorten_waits(self) -> None:
        """Shorten all waits, because everything is saved."""
        self._seconds = min(self._seconds, FINAL_WAIT_SECONDS)

    def close(self) -> None:
        """Leave a group that all ranks leave."""
        self._release()
        formed, self._formed = self._formed, None
        if formed is not None:
            formed.__exit__(None, None, None)
        self._group = self._votes = None  # the teardown waits for the last reference
        release_last_group().join(_TEARDOWN_SECONDS)

    def abandon(self, error: BaseException) -> None:
        """Leave the group, if there is one, because of an error outside of it."""
        with suppress(BaseException):
            self._give_up(error)

    @property
    def _shard_assignment(self) -> ShardAssignment:
        return self.run.shard_assignment(rank=self.group.rank, size=self.group.size)

    @property
    def _shares_buffers(self) -> bool:
        return self.group.size > 1 and any(net.shares_buffers for net in self.nets)

    def _form_once(self, error: Exception | None) -> None:
        self.trouble = None
        if error is not None:
            self._give_up(error)
        formed = self._world.formed(timeout_seconds=self._seconds, told_to_stop=self._stop.told)
        self._group = formed.__enter__()
        self._formed = formed
        self._script.enter(self._group)  # first: parts of a model need the group of their mesh
        if self.snapshots is None:
            had_state = self._checkpoint_manager.agree(self.run, self._group)
            in_loop = self._script.place[0] in ("step", "after a step")
            self.verification.begin(self._group, had_state=had_state, may_return=in_loop)
            self.agree_on_buffers()
        else:
            self.snapshots.agree(self._group)
        self._stop.listen()  # there is a state to save from now on
        for net in self.nets:
            net.form(self._group, self._shard_assignment)
        self._votes = Votes(
            self._group,
            stop=self._stop.vote,
            save=self._checkpoint_manager.is_overdue,
            leave=self._world.current_assignment.is_outdated,
        )

    def _release(self) -> None:
        """Release what belongs to the group, before this rank leaves it."""
        for net in self.nets:
            net.leave()
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
