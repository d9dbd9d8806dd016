"""The module that a script calls instead of its model: a DDP wrapper, renewed for each group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn

from ddp_trainer.collectives.fixed_buckets import FixedBuckets
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.collectives.shard_gradients import ShardGradients
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.settings.training import DDPOptions

_MIB = 1 << 20
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


class _State:
    """What changes within a step; a module takes microseconds to set an attribute."""

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
        self._group, self._is_laid_out, self.state.exchanges = group, False, False
        self._formed_for = [parameter for _, parameter in self._trained()]
        if not assignment.is_plain:
            options = self._options
            self._shards = ShardGradients(
                self.module,
                group,
                assignment,
                piece_bytes=int(options.bucket_cap_mb * _MIB),
                travel_as=_HALVES.get(options.gradient_compression),
                may_leave_out=options.find_unused_parameters or options.static_graph,
                when_computed=self.finish,
            )
            return
        note_average = partial(setattr, self.state, "has_averaged", True)
        self._wrapped = [group.wrap(self.module, self._options, when_averaging=note_average)]

    @property
    def is_outdated(self) -> bool:
        """Return whether other parameters are trained now than when it joined its group."""
        return [id(each) for _, each in self._trained()] != [id(each) for each in self._formed_for]

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
            if self._shards.left_out:
                raise self._incomplete(self._shards.left_out)
            return
        try:
            for wrapped in self._wrapped:
                wrapped._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            indices = _UNUSED_INDICES.search(str(error))
            if indices is None or self._group is None:
                raise
            names = [name for name, _ in self._trained()]
            last = len(names) - 1  # FixedBuckets has the last parameter first
            unused = sorted(last - int(index) for index in indices[1].split())
            raise self._incomplete([names[number] for number in unused]) from error
        if self._wrapped and not has_averaged:
            self._expect_no_gradients()

    def _expect_no_gradients(self) -> None:
        for name, parameter in self._trained():
            gradient = parameter.grad
            # An optimizer may clear gradients by zeros.
            if gradient is not None and (gradient.is_sparse or gradient.any()):
                raise ConfigurationError(
                    f"{name} has a gradient that was not averaged over the ranks: the loop calls "
                    "the model itself. Call what job.wrap() returned, as in net = job.wrap(model)"
                )

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        named = self.module.named_parameters()
        return ((name, parameter) for name, parameter in named if parameter.requires_grad)

    def _incomplete(self, names: Sequence[str]) -> ConfigurationError:
        assert self._group is not None
        return ConfigurationError(
            f"the loss of rank {self._group.rank} does not depend on {', '.join(names)}: set "
            "--find-unused-parameters (find_unused_parameters=True in your own script), or freeze "
            "them, or remove them from the model"
        )

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
