"""What a script calls instead of its model: in each group the model's DDP wrapper of that group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, is_grad_enabled, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.collectives.group import Group
from ddp_trainer.membership.failures import is_lost_peer
from ddp_trainer.settings.training import DDPOptions


class Net(nn.Module):
    """A model whose gradients come averaged over all ranks; outlives the groups it trains in.

    It computes by itself, alone, where no gradients are wanted: when it evaluates, and in what is
    left of a step whose group has broken, of which nothing will be kept.
    """

    def __init__(
        self,
        model: nn.Module,
        options: DDPOptions,
        *,
        on_trouble: Callable[[Exception], None],
        before_waiting: Callable[[Tensor], None],
    ) -> None:
        """`on_trouble` gets what broke the group while the model computed, and calls `leave`.

        `before_waiting` gets an output whose backward pass may wait for other ranks.
        """
        super().__init__()
        self.module = model
        self.shares_buffers = options.broadcast_buffers
        self._options = options
        self._on_trouble = on_trouble
        self._before_waiting = before_waiting
        self._wrapped: list[DistributedDataParallel] = []  # no module: a name of its own for none
        self._exchanges = False
        self._group: Group | None = None

    def form(self, group: Group) -> None:
        """Train with the ranks of a new group; a collective."""
        self._group = group
        self._wrapped = [group.wrap(self.module, self._options, quiet=True)]

    def leave(self) -> None:
        """Let go of a group that broke."""
        self._wrapped = []

    def exchange(self, *, wanted: bool) -> None:
        """Whether the next backward pass averages the gradients."""
        self._exchanges = wanted

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model says."""
        if not (self._wrapped and self.training and is_grad_enabled()):
            return self.module(*inputs, **named)
        [wrapped] = self._wrapped
        try:
            with contextlib.nullcontext() if self._exchanges else wrapped.no_sync():
                outputs = wrapped(*inputs, **named)
        except RuntimeError as error:  # where ranks agree on their buckets, once in a group
            assert self._group is not None
            if not (is_lost_peer(error) or self._group.is_broken):
                raise
            self._on_trouble(error)
            return self.module(*inputs, **named)
        if self._exchanges and isinstance(outputs, Tensor) and outputs.requires_grad:
            self._before_waiting(outputs)
        return outputs
