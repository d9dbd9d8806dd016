"""The module that a script calls instead of its model: a DDP wrapper, renewed for each group."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.collectives.shard_gradients import ShardGradients
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.settings.flags import as_arguments
from ddp_trainer.settings.training import COMPRESSIONS, DDPOptions

WRAP_OPTIONS = (
    "broadcast_buffers",
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "gradient_compression",
    "static_graph",
)
"""DDP options that `Job.wrap` accepts."""

_MIB = 1 << 20
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


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
        self._wrapped: list[
            DistributedDataParallel
        ] = []  # a list, so that it does not become a submodule
        self._shards: ShardGradients | None = None
        """Replaces DDP where a rank computes other parts of a step than its own shard."""
        self._exchanges = False
        self._group: Group | None = None

    def form(self, group: Group, assignment: ShardAssignment) -> None:
        """Train with the ranks of a new group; a collective."""
        self.leave()
        self._group = group
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
        self._wrapped = [group.wrap(self.module, self._options)]

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
        self._exchanges = is_last
        if self._shards is not None:
            self._shards.begin_batch(slot, weight=weight, is_first=is_first, is_last=is_last)

    def begin_probe(self) -> None:
        """Prepare for a batch of which each rank keeps its own gradients."""
        self._exchanges = False

    def finish(self) -> None:
        """Average the gradients, if the last backward pass has not done so."""
        if self._shards is None:
            return
        try:
            self._shards.finish()
        except Exception as error:
            self._note(error)

    def check_all_parameters_took_part(self) -> None:
        """Check that the last backward pass computed all gradients.

        Raises:
            ConfigurationError: the loss does not depend on some parameters, and
                find_unused_parameters is not set.
        """
        if self._shards is not None and self._shards.left_out:
            raise self._incomplete(self._shards.left_out)
        try:
            for wrapped in self._wrapped:
                wrapped._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            indices = _UNUSED_INDICES.search(str(error))
            if indices is None or self._group is None:
                raise
            parameters = self.module.named_parameters()
            trained = [name for name, parameter in parameters if parameter.requires_grad]
            raise self._incomplete([trained[int(i)] for i in indices[1].split()]) from error

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
        """Run the model; its gradients are averaged in the backward pass."""
        trains = self.training and is_grad_enabled()
        if not (trains and (self._wrapped or self._shards is not None)):
            return self.module(*inputs, **named)
        outputs = (self._averaged if self._wrapped else self.module)(*inputs, **named)
        if self._exchanges and isinstance(outputs, Tensor) and outputs.requires_grad:
            self._before_waiting(outputs)
        return outputs

    def _averaged(self, *inputs: Any, **named: Any) -> Any:
        [wrapped] = self._wrapped
        try:
            with contextlib.nullcontext() if self._exchanges else wrapped.no_sync():
                return wrapped(*inputs, **named)
        except Exception as error:  # ranks agree on their buckets here, once in a group
            self._note(error)
            return self.module(*inputs, **named)


def options_of(ddp: Mapping[str, Any]) -> DDPOptions:
    """Return the options of `Job.wrap`.

    Raises:
        ConfigurationError: an option is unknown or has an invalid value.
    """
    unknown = set(ddp) - set(WRAP_OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"wrap() takes {', '.join(WRAP_OPTIONS)}, not {', '.join(sorted(unknown))}"
        )
    try:
        options = DDPOptions(**ddp)
    except ConfigurationError as error:
        raise ConfigurationError(f"wrap(): {as_arguments(str(error))}") from error
    if options.gradient_compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"wrap() got gradient_compression={options.gradient_compression!r}: choose from "
            f"{', '.join(COMPRESSIONS)}"
        )
    return options
