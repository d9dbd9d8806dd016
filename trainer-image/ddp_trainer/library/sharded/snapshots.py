"""The snapshots by which a sharded training survives the loss of ranks.

A rank has a part of the model that no other rank has. So after each step it takes a snapshot of
its state, and copies it to other ranks while the next step is computed. No rank applies that next
step before all copies are complete: `confirm` is a barrier of all ranks. So whenever ranks are
lost, all snapshots of one of the last two steps exist. All ranks continue from the newer one. A
rank that is one step further returns to it.

Where another rank has the same state (HSDP), it replaces the copy. So all continue from the step
that the remaining ranks have taken, although a lost one could not copy it any more.

A rank keeps two snapshots of its own and two of each rank whose copies it holds. If the ranks are
compared, it also keeps those of the newest verified step.

If more is lost, all processes restart and continue from the volumes in memory of their pods, if
the job has them. There ranks save the newest step whenever all of them have room.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Sequence
from concurrent import futures
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.collectives.group import Group
from ddp_trainer.library.sharded import packing
from ddp_trainer.library.sharded.agreement import Decision, newest_complete
from ddp_trainer.library.sharded.copy_holders import CopyHolders
from ddp_trainer.library.sharded.exchange import (
    HeldCopies,
    gathered,
    receive,
    send,
    share_progress,
    started,
)
from ddp_trainer.library.sharded.replicas import shard_of
from ddp_trainer.library.sharded.saved_parts import SavedParts
from ddp_trainer.library.sharded.state_at_rest import StateAtRest, end_step_of_changed
from ddp_trainer.library.sharded.support import expect_place
from ddp_trainer.library.sharded.verified_step import VerifiedStep
from ddp_trainer.memory.volume import Key
from ddp_trainer.run.train_state import TrainState

if TYPE_CHECKING:
    from ddp_trainer.library.script_collectives import ScriptCollectives

_logger = logging.getLogger(__name__)


class Snapshots:
    """One rank's snapshots of its own state, and its copies of other ranks' snapshots."""

    def __init__(
        self,
        run: TrainState,
        mesh: DeviceMesh,
        script: ScriptCollectives,
        saved_parts: SavedParts,
        copy_holders: CopyHolders,
        at_rest: StateAtRest,
        verified: VerifiedStep,
    ) -> None:
        """`mesh`: of the run's models. `script` runs the collectives of optimizers, too."""
        self._run = run
        self.mesh = mesh
        self._script = script
        self._saved_parts = saved_parts
        self._saving: futures.Future[None] | None = None
        """Ends when a snapshot is in the volume of the pod."""
        self._copy_holders = copy_holders
        self.at_rest = at_rest
        self.verified = verified
        self._group: Group | None = None
        self._own: dict[int, Tensor] = {}
        """By step."""
        self._copies = HeldCopies(verified)
        self._progress: dict[int, dict[str, Any]] = {}
        """Where the run stood right before the next step changed it, by step."""
        self._shard: int | None = None
        """See `shard_of`."""
        self._is_whole = False
        """True: the present state is that of a complete step."""
        self._copying: futures.Future[None] | None = None
        """Ends when the newest snapshot is copied, and this rank has the copies it must hold."""

    def agree(self, group: Group) -> None:
        """Give all ranks the state of the same step: the newest that no lost rank took with it.

        Raises:
            NewProcessError: some rank's state is lost, or this rank must hold another part of the
                model than before.
        """
        self._group = group
        self._copies.enter(group)
        expect_place(self.mesh, group)
        for module in chain.from_iterable(model.modules() for model in self._run.models):
            if isinstance(module, FSDPModule):
                module.reshard()  # it may hold what a step without all ranks gathered
        self._copy_holders.follow(group)
        self._shard = shard_of(self._run.parts, self.mesh)
        if self._is_whole:
            self._keep_present()  # the group broke before `take`
        own = {0} if self._run.is_fresh else set(self._own)
        inventories = gathered(
            group,
            own=[Key(0, step) for step in own],
            copies=[(rank, Key(0, step)) for rank, step in self._copies.listed()],
            shard=self._shard,
        )
        decision = newest_complete(inventories)
        loaded = None
        if decision is None or decision.key.step == 0:
            loaded = self._load_saved(group, lost=decision is None)
        decision = loaded or decision
        assert decision is not None
        step = decision.key.step
        self._pass_over(group, loaded)
        self._return_to(step)
        if group.rank not in decision.senders:
            self._keep_present()
        self._transfer(decision, group)
        share_progress(self._run, group)
        self._run.is_fresh, self._is_whole = False, True
        self.verified.begin_at(step)
        # The step before stays until this one is copied, and copies that belong elsewhere until
        # there are others.
        self._drop_after(step)
        held = sorted(rank for rank, at in self._copies.listed() if at == step)
        known = [json.loads(each) for each in group.gather(json.dumps(held).encode())]
        # As after `take`, the next step is computed meanwhile.
        self._begin_to_copy(step, known)

    def _keep_present(self) -> None:
        """Take a snapshot of the present state, unless there is one; the newest before it stays."""
        step = self._run.position.step
        if step not in self._own:
            old = [self._own.pop(before) for before in self.verified.replaceable(self._own)]
            state = self._run.full_state_dict()
            self._own[step] = packing.pack(state, old[0] if old else None)

    def _load_saved(self, group: Group, *, lost: bool) -> Decision | None:
        """Load the newest snapshots in the memory of the pods; see `SavedParts.load_newest`."""
        loaded = self._saved_parts.load_newest(group, lost=lost)
        if loaded is None:
            return None
        step = loaded.decision.key.step
        if loaded.own is not None:
            self._own[step], self._progress = loaded.own, {}
        self._copies.add(step, loaded.copies)
        return loaded.decision

    def _pass_over(self, group: Group, loaded: Decision | None) -> None:
        """Save no step in the memory of the pods that some rank has saved before; a collective.

        A rank that was lost may not have saved it.
        """
        told = group.gather(json.dumps(self._saved_parts.newest_step()).encode())
        self._saved_parts.pass_over(max(map(int, told)), loaded=loaded.key if loaded else None)

    def take(self) -> None:
        """Take a snapshot after a step, and begin to copy it; `confirm` the step before first."""
        self._keep_present()
        self._begin_to_copy(self._run.position.step)

    def confirm(self) -> None:
        """Wait until all ranks have their snapshots and copies of the last step; a collective.

        If all ranks have room in the memory of their pods, they begin to save the step there. If
        copies belong elsewhere by now, those of the next step go there.
        """
        assert self._group is not None
        if self._copying is not None:
            self._copying.result()
        if self._saving is not None:
            self._saving.result()
        step = max(self._own)
        has_changed = self.at_rest.has_changed()
        ranks, are_outdated, changed = self._group.sum(
            float(self._saved_parts.wants(step) and self.verified.may_be_saved(step)),
            float(self._group.rank == 0 and self._copy_holders.are_outdated),
            float(has_changed),
        )
        if changed:
            end_step_of_changed(self._group, is_own=has_changed, step=step)
        self.verified.complete(step)
        if ranks == self._group.size:
            self._saving = started(partial(self._saved_parts.save, step, self._own[step]))
        self._copies.drop_moved(step, self._copy_holders.sources)
        if are_outdated:
            self._copy_holders.follow(self._group)

    def leave_step(self) -> None:
        """Note where the run stands, now that its next step will change the state."""
        self.at_rest.end()
        step, kept = self._run.position.step, self.verified.kept
        self._progress = {at: known for at, known in self._progress.items() if at in kept}
        self._progress[step] = self._run.progress_dict()
        self._is_whole = False
        self._script.begin_update()

    def end_step(self, group: Group, *, has_all: bool) -> bool:
        """Return whether this rank's step counts; some optimizers apply it with all ranks.

        `has_all`: no rank was lost. Otherwise it counts if the others can continue from it, and if
        no collective of the update lacks its result, which is not known of a device's own.
        """
        is_sure = self._script.is_update_complete and not group.queues
        self._is_whole = has_all or (self._shard is not None and is_sure)
        return self._is_whole

    def return_to_verified(self) -> None:
        """Leave the group, and forget the snapshots of all steps after the verified one."""
        self.leave()
        assert self.verified.number is not None
        self._is_whole = False  # the present state may be wrong
        self._drop_after(self.verified.number)

    def _drop_after(self, step: int) -> None:
        """Release the snapshots of later steps."""
        self._own = {at: own for at, own in self._own.items() if at <= step}
        self._copies.drop_after(step)

    def leave(self) -> None:
        """Release a group that broke or that all ranks leave."""
        self._group = self._copying = None
        self._copies.enter(None)
        if self._saving is not None:
            futures.wait([self._saving])

    def _return_to(self, step: int) -> None:
        run = self._run
        if run.position.step == step or step not in self._own:
            return
        if not run.is_fresh:
            _logger.info("returning from step %d to step %d", run.position.step, step)
        # The script may have left the place of the snapshot before it took the next step.
        run.load_state_dict(self._unpacked(self._own[step]) | self._progress.get(step, {}))
        run.is_fresh = False

    def _unpacked(self, snapshot: Tensor) -> dict[str, Any]:
        parameters = (each for model in self._run.models for each in model.parameters())
        state: dict[str, Any] = packing.unpack(snapshot, parameters)
        return state

    def _transfer(self, decision: Decision, group: Group) -> None:
        """Give each rank that lacks its snapshot a copy of it."""
        begin, step = time.monotonic(), decision.key.step
        sending = [
            started(partial(send, self._part(rank, step), group, to=rank))
            for rank, sender in decision.senders.items()
            if group.rank == sender
        ]
        if group.rank in decision.senders:
            memory = receive(None, group, source=decision.senders[group.rank])
            self._run.load_state_dict(self._unpacked(memory))
            self._run.is_fresh = False
            self._own[step] = memory
        for sent in sending:
            sent.result()
        if group.rank == 0 or group.rank in decision.senders:
            seconds = time.monotonic() - begin
            _logger.info("continuing from memory at step %d: %s, %.2f s", step, decision, seconds)

    def _part(self, rank: int, step: int) -> Tensor:
        """Return a copy of a rank's snapshot, or this rank's own, which is the same."""
        copy = self._copies.get(rank, step)
        return self._own[step] if copy is None else copy

    def _begin_to_copy(self, step: int, known: Sequence[Collection[int]] = ()) -> None:
        """`known`: for each rank, those whose snapshots of this step it has; empty: none."""
        group = self._group
        assert group is not None
        known = known or [()] * group.size
        rounds = self._copy_holders.rounds
        own = self._own[step]
        self._copying = started(partial(self._copies.exchange, step, own, group, known, rounds))
