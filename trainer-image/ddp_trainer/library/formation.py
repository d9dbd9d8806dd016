"""The groups that a job's ranks form, one after another, so that nobody else sees one break."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.exit_codes import BrokenGroupError, MovedError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.progress import FINAL_WAIT_SECONDS
from ddp_trainer.library.reform_limit import ReformLimit
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.steps.net import Net
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.process_group.teardown import release_last_group
from ddp_trainer.process_group.world import World
from ddp_trainer.run.stop import StopSignal, Votes
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options

_logger = logging.getLogger(__name__)

_TEARDOWN_SECONDS = 10.0
"""For threads of a group that everybody has left in order: they end at once."""


class Formation:
    """The present group, and what takes its place when it breaks.

    A collective that fails is answered by `form`, which comes back when there is a new group, all
    ranks of which have the state of the most advanced one.
    """

    def __init__(
        self,
        world: World,
        run: TrainState,
        checkpoint_manager: CheckpointManager,
        stop: StopSignal,
        script: ScriptCollectives,
        options: Options,
    ) -> None:
        """`run`: what all ranks train."""
        self.run = run
        self._world = world
        self._checkpoint_manager = checkpoint_manager
        self._stop = stop
        self._script = script
        self._reform_limit = ReformLimit(options.max_reforms)
        self._seconds = options.rendezvous_timeout_seconds
        self._formed: AbstractContextManager[Group] | None = None
        self._group: Group | None = None
        self._votes: Votes | None = None
        self._rehearsed = False
        self.nets: list[Net] = []
        """Whose gradients are exchanged, in the order in which all ranks have wrapped them."""
        self.trouble: Exception | None = None
        """What broke the group, if that is known and not yet dealt with."""

    @property
    def group(self) -> Group:
        """The present one; of no more use once there is trouble."""
        assert self._group is not None, "the job is not formed"
        return self._group

    @property
    def votes(self) -> Votes:
        """Of the present group."""
        assert self._votes is not None, "the job is not formed"
        return self._votes

    @property
    def is_open(self) -> bool:
        """Whether there is a group that was not left."""
        return self._formed is not None

    @property
    def has_state(self) -> bool:
        """Whether there is something that could be saved."""
        return not self.run.is_fresh

    @property
    def is_rehearsed(self) -> bool:
        """Whether sums round in this group as they will from here on.

        DDP lays out its gradient buckets anew after its first pass, and the layout decides in which
        order the ranks' numbers are added. Without a rehearsal, the first step after a group has
        broken would round differently from the same step of a run that nothing happened to. Two
        numbers have one sum: two ranks need none, unless DDP wants to see a whole pass first. Where
        shards are dealt out, DDP has no part in it.
        """
        return self._rehearsed

    def form(self, error: Exception | None, *, when_broken: Callable[[], None]) -> None:
        """Form a group, the first one or after `error` in the present one.

        Raises:
            Exception: the error, where it was not the group that broke; or why no other one could
                be formed.
        """
        while True:
            has_moved = isinstance(error, MovedError)
            try:
                self._form_once(error)
                return
            except BrokenGroupError as broken:
                error = broken
                if not self.is_open:  # it was left, or has not come about
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
            return  # another group is no trouble with this one; it is logged where it is met
        if has_moved:
            _logger.info("the group changes, as other pods know: leaving it at step %d", step)
        else:
            self._reform_limit.count(step=step, reason=str(broken))

    def wrap(self, net: Net) -> None:
        """Exchange the gradients of another model; a collective.

        Raises:
            Exception: what `form` is to be told.
        """
        self.nets.append(net)
        self._begin_to_rehearse()
        net.form(self.group, self._shard_assignment)

    def note(self, error: Exception) -> None:
        """The group is of no more use: compute on alone, until the step is to be taken."""
        self.trouble = error
        for net in self.nets:
            net.leave()

    def wait_for_gradients(self, *, in_turn: bool = False) -> bool:
        """Whether those of all ranks are whole; False also where the step is but a rehearsal.

        `in_turn`: what the passes before have computed may go on to be used.
        """
        if self.trouble is None:
            for net in self.nets:
                net.finish()
        if self.trouble is None:
            for net in self.nets:
                net.check_all_parameters_took_part()
            try:
                if self._shares_buffers:
                    # After the step rather than before the next: whoever lives has rank 0's then.
                    self._share_buffers(in_turn=in_turn)
                self.group.gate.wait()
            except Exception as error:
                if not (is_lost_peer(error) or self.group.is_broken):
                    raise
                self.note(error)
        return self.trouble is None and self._rehearsed

    def end_rehearsal(self) -> None:
        """All nets have made their pass."""
        self._rehearsed = True

    def equalise(self) -> None:
        """Give all ranks the same buffers; a collective.

        Due before what the state of one rank decides for all: a save, an evaluation.
        """
        if self.group.size > 1 and not self._shares_buffers:
            self.group.share(*self.run.buffers())

    def be_brief(self) -> None:
        """All is saved: from here on wait for nobody for long."""
        self._seconds = min(self._seconds, FINAL_WAIT_SECONDS)

    def close(self) -> None:
        """Leave a group that everybody leaves."""
        for net in self.nets:
            net.leave()
        self._script.leave()
        formed, self._formed = self._formed, None
        if formed is not None:
            formed.__exit__(None, None, None)
        self._group = self._votes = None  # the burial waits for whoever refers to its last group
        release_last_group().join(_TEARDOWN_SECONDS)

    def abandon(self, error: BaseException) -> None:
        """Leave the group, if there is one, because of an error that is nobody's here."""
        with suppress(BaseException):
            self._give_up(error)

    def _share_buffers(self, *, in_turn: bool) -> None:
        buffers = list(self.run.buffers())
        if in_turn:
            buffers = [buffer.clone() for buffer in buffers]
        self.group.share(*buffers)
        if in_turn:
            self.run.put_buffers(buffers)

    @property
    def _shard_assignment(self) -> ShardAssignment:
        return self.run.shard_assignment(rank=self.group.rank, size=self.group.size)

    @property
    def _shares_buffers(self) -> bool:
        return self.group.size > 1 and any(net.shares_buffers for net in self.nets)

    def _begin_to_rehearse(self) -> None:
        is_clear = self.group.size <= 2 and not any(net.has_static_graph for net in self.nets)
        self._rehearsed = is_clear or not self._shard_assignment.is_plain

    def _form_once(self, error: Exception | None) -> None:
        self.trouble = None
        if error is not None:
            self._give_up(error)
        formed = self._world.formed(timeout_seconds=self._seconds, told_to_stop=self._stop.told)
        self._group = formed.__enter__()
        self._formed = formed
        self._checkpoint_manager.agree(self.run, self._group)
        self._stop.listen()  # from here on there is something to save
        self._begin_to_rehearse()
        for net in self.nets:
            net.form(self._group, self._shard_assignment)
        self._votes = Votes(
            self._group,
            stop=self._stop.vote,
            save=self._checkpoint_manager.is_overdue,
            leave=self._world.current_assignment.is_outdated,
        )
        self._script.enter(self._group)

    def _give_up(self, error: BaseException) -> None:
        """Leave the group; raises BrokenGroupError if that is what the error means, else itself."""
        for net in self.nets:
            net.leave()
        self._script.leave()
        formed, self._formed = self._formed, None
        if formed is not None:
            formed.__exit__(type(error), error, error.__traceback__)
        raise error
