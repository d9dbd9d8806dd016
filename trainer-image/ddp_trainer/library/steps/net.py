"""The modules that a script calls instead of its models, and what ranks exchange in each step.

A `Net` is a DDP wrapper, renewed for each group. `Exchange` has all of them, with rank 0's buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_grad_enabled, nn

from ddp_trainer.collectives.fixed_buckets import FixedBuckets
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.collectives.shard_gradients import ShardGradients
from ddp_trainer.library.checks.gradients import expect_none, incomplete, unused
from ddp_trainer.library.steps.shared_buffers import SharedBuffers
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.settings.training import DDPOptions

if TYPE_CHECKING:
    from ddp_trainer.library.sharded.snapshots import Snapshots

_MIB = 1 << 20
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class _State:
    """The state that changes within a step; a module takes microseconds to set an attribute."""

    exchanges = False
    """True: the next backward pass averages the gradients."""
    has_averaged = False
    """True: it has begun to, since the last check."""


class Net(nn.Module):
    """A model with gradients averaged over all ranks; it outlives the groups in which it trains.

    It computes alone where no gradients are needed: in an evaluation, and in the rest of a step
    after the group broke, which will be discarded.
    """

    def __init__(
        self,
        model: nn.Module,
        options: DDPOptions,
        *,
        on_trouble: Callable[[Exception], None],
        before_waiting: Callable[[Tensor], None],
    ) -> None:
        """`on_trouble` receives the error that broke the group during a pass, and calls `leave`.

        `before_waiting` receives an output before its backward pass, which may wait for ranks.
        """
        super().__init__()
        self.module = model
        self.shares_buffers = options.broadcast_buffers
        self.has_static_graph = options.static_graph
        self._options = options
        self._on_trouble = on_trouble
        self._before_waiting = before_waiting
        self._wrapped: list[FixedBuckets] = []  # a list, so that it does not become a submodule
        self._shards: ShardGradients | None = None
        """Replaces DDP where a rank computes other parts of a step than its own shard."""
        self.state = _State()
        self._is_laid_out = False
        """True: all ranks of the group have the same buckets."""
        self._group: Group | None = None
        self._formed_for: list[nn.Parameter] = []
        """The parameters that were trained then."""

    def form(self, group: Group, assignment: ShardAssignment) -> None:
        """Train with the ranks of a new group."""
        self.leave()
        model = self.module
        self._group, self._is_laid_out, self.state.exchanges = group, False, False
        self._formed_for = [each for each in model.parameters() if each.requires_grad]
        if not assignment.is_plain:
            options = self._options
            self._shards = ShardGradients(
                model,
                group,
                assignment,
                piece_bytes=int(options.bucket_cap_mb * _MIB),
                travel_as=_HALVES.get(options.gradient_compression),
                may_leave_out=options.find_unused_parameters or options.static_graph,
                when_computed=self.finish,
            )
            return
        note_average = partial(setattr, self.state, "has_averaged", True)
        self._wrapped = [group.wrap(model, self._options, when_averaging=note_average)]

    @property
    def is_outdated(self) -> bool:
        """Return whether other parameters are trained now than when it joined its group."""
        now = [each for each in self.module.parameters() if each.requires_grad]
        return [*map(id, now)] != [*map(id, self._formed_for)]

    def leave(self) -> None:
        """Release a group that broke or that all ranks leave."""
        self._wrapped, self._group = [], None
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def begin_batch(self, slot: int, *, weight: float, is_first: bool, is_last: bool) -> None:
        """Prepare for a batch of the part in this slot; `is_first`, `is_last`: in the step.

        The backward pass of the last batch averages the gradients. `weight`: size of the part in
        shards; 0: the batch is ignored.
        """
        self.state.exchanges, self.state.has_averaged = is_last, False
        if self._shards is not None:
            self._shards.begin_batch(slot, weight=weight, is_first=is_first, is_last=is_last)

    def finish(self) -> None:
        """Average the gradients, if the last backward pass has not done so."""
        if self._shards is None:
            return
        try:
            self._shards.finish()
        except Exception as error:
            self._note(error)

    def check_gradients(self) -> None:
        """Check that the gradients since the last check are complete, and averaged.

        Raises:
            ConfigurationError: the loss does not depend on some parameters, and
                find_unused_parameters is not set; or the script called the model without this
                wrapper.
        """
        has_averaged, self.state.has_averaged = self.state.has_averaged, False
        if self._shards is not None:
            if self._shards.left_out and self._group is not None:
                raise incomplete(self._shards.left_out, rank=self._group.rank)
            return
        try:
            for wrapped in self._wrapped:
                wrapped._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            names = unused(self.module, error)
            if names is None or self._group is None:
                raise
            raise incomplete(names, rank=self._group.rank) from error
        if self._wrapped and not has_averaged:
            expect_none(self.module)

    def _note(self, error: Exception) -> None:
        assert self._group is not None
        if not (is_lost_peer(error) or self._group.is_broken):
            raise error
        self._on_trouble(error)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model; its gradients are averaged in the backward pass.

        In eval mode too, as in DistributedDataParallel: layers in that mode may be trained.
        """
        if not (is_grad_enabled() and (self._wrapped or self._shards is not None)):
            return self.module(*inputs, **named)
        outputs = (self._averaged if self._wrapped else self.module)(*inputs, **named)
        if self.state.exchanges and isinstance(outputs, Tensor) and outputs.requires_grad:
            self._before_waiting(outputs)
        return outputs

    def _averaged(self, *inputs: Any, **named: Any) -> Any:
        [wrapped] = self._wrapped
        if not self.state.exchanges:
            with wrapped.no_sync():
                return wrapped(*inputs, **named)
        if not self._is_laid_out:
            try:
                wrapped.lay_out()  # a collective
            except Exception as error:
                self._note(error)
                return self.module(*inputs, **named)
            self._is_laid_out = True
        return wrapped(*inputs, **named)


class Exchange:
    """The exchange of a group's ranks in each step: gradients, and rank 0's buffers."""

    def __init__(self, models: Sequence[nn.Module], snapshots: Snapshots | None) -> None:
        """`snapshots`: of this rank's part, if the models are sharded."""
        self._snapshots = snapshots
        self._buffers = SharedBuffers(models)
        self._group: Group
        self._assignment: ShardAssignment
        self.nets: list[Net] = []
        """The wrapped models, in the order in which all ranks have wrapped them."""
        self.trouble: Exception | None = None
        """The error that broke the group, until another one forms."""

    def enter(self, group: Group) -> None:
        """Exchange nothing with the ranks of a new group until `form`."""
        self._group, self.trouble = group, None

    def form(self, assignment: ShardAssignment) -> None:
        """Exchange with the ranks of the group, which have the same state by now; a collective."""
        self._assignment = assignment
        self.agree_on_buffers()
        for net in self.nets:
            net.form(self._group, assignment)

    def wrap(self, net: Net) -> None:
        """Exchange the gradients of another model."""
        self.nets.append(net)
        net.form(self._group, self._assignment)

    def renew(self) -> None:
        """Exchange the gradients of the parameters that are trained now."""
        for net in self.nets:
            if net.is_outdated:
                net.form(self._group, self._assignment)

    def leave(self) -> None:
        """Average no more gradients in the group."""
        for net in self.nets:
            net.leave()

    def close(self) -> None:
        """Release the group, which has no successor."""
        self.leave()
        del self._group

    def note(self, error: Exception) -> None:
        """Note that the group is broken: this rank computes alone until it would take the step."""
        self.trouble = error
        self.leave()

    def note_lost_peer(self, error: Exception) -> None:
        """Note that the group is broken, if the error means that; raise it otherwise."""
        if not (is_lost_peer(error) or self._group.is_broken):
            raise error
        self.note(error)

    def wait_for_gradients(self, *, in_turn: bool = False) -> bool:
        """Wait for the gradients of all ranks; return whether the step can be taken.

        False if the group broke. `in_turn`: the script may still use what earlier passes computed.

        Raises:
            ConfigurationError: see `Net.check_gradients`.
        """
        if self.trouble is None:
            for net in self.nets:
                net.finish()
        if self.trouble is None:
            for net in self.nets:
                net.check_gradients()
            try:
                if self._buffers.shared and self._shares_buffers:
                    # After the step, not before the next: all surviving ranks then have rank 0's.
                    self._buffers.share(self._group, in_turn=in_turn)
                self._group.gate.wait()
                if self._snapshots is not None:
                    self._snapshots.confirm()
                    self._snapshots.leave_step()
            except Exception as error:
                self.note_lost_peer(error)
        return self.trouble is None

    def is_step_whole(self) -> bool:
        """Return whether the step counts: some optimizers apply parts of models with all ranks."""
        if self._snapshots is not None:
            try:
                self._group.gate.wait()
            except Exception as error:
                self.note_lost_peer(error)
            return self._snapshots.end_step(self._group, has_all=self.trouble is None)
        return self.trouble is None

    def end_step(self) -> None:
        """Average no gradients until the next batch of a step."""
        for net in self.nets:
            net.state.exchanges = False

    def agree_on_buffers(self) -> None:
        """Find out which buffers all ranks have now; a collective."""
        if self._snapshots is None:
            self._buffers.agree(self._group)

    def equalise_buffers(self) -> None:
        """Give all ranks the same buffers; a collective.

        Needed before one rank's state counts for all: before a save or an evaluation. Of a sharded
        model, each rank keeps its own.
        """
        if self._group.size > 1 and not self._shares_buffers and self._snapshots is None:
            self._buffers.share(self._group)

    @property
    def _shares_buffers(self) -> bool:
        return self._group.size > 1 and any(net.shares_buffers for net in self.nets)
