"""Collects the gradients of a model by logical shards and averages them over all ranks.

DDP averages the gradients of all ranks with equal weights. Here, a rank may compute several shards,
smaller parts of them, or one that is ignored. This module copies their gradients as they are
computed. So after each batch a script may clip or clear the gradients that it sees, as if that
batch were the only one. At the end of the last batch's backward pass, the means replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.exit_codes import ConfigurationError


class ShardGradients:
    """The gradients of one model on one rank, in one group.

    Summed as they are computed, they need the memory of one more copy of the gradients. If sums
    must be the same to the bit, each shard of this rank needs its own copy: pieces of all shards go
    to the rank that sums them, and the sums go to all ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        assignment: ShardAssignment,
        *,
        piece_bytes: int,
        travel_as: torch.dtype | None = None,
        may_leave_out: bool,
        when_computed: Callable[[], None],
    ) -> None:
        """`piece_bytes`: bytes sent at a time; `travel_as`: another type in which they travel.

        `may_leave_out`: the loss may not depend on all parameters. `when_computed` is called at the
        end of a step's last backward pass, and calls `finish`.
        """
        self._group = group
        self._assignment = assignment
        self._travel_as = travel_as
        self._may_leave_out = may_leave_out
        self._when_computed = when_computed
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._memories = _memories(
            self._parameters,
            rows=assignment.slots if assignment.exact else 1,
            piece_bytes=piece_bytes,
            parts=group.size,
        )
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._take, number)
            )
            for number, parameter in enumerate(self._parameters)
        ]
        self._slot: int | None = None
        self._weight = 0.0
        self._is_last = False
        self._is_queued = False
        self._seen: set[int] = set()
        """Parameters with a gradient of the present batch."""
        self._written: set[tuple[int, int]] = set()
        """Rows and parameters with a gradient of this step."""
        self._left_out: set[int] = set()
        """Parameters without a gradient in some batch of this step."""

    def close(self) -> None:
        """Stop collecting gradients, so that the next group can."""
        for hook in self._hooks:
            hook.remove()

    def begin_batch(self, slot: int, *, weight: float, is_first: bool, is_last: bool) -> None:
        """Prepare for a batch of the part in this slot; `is_first`, `is_last`: in the step.

        `weight`: size of the part in shards; 0: the batch is ignored.
        """
        if is_first:
            self._written.clear()
            self._left_out.clear()
        else:
            self._note_left_out()
        self._slot, self._weight = slot, weight
        self._is_last, self._is_queued = is_last, False
        self._seen.clear()
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def left_out(self) -> list[str]:
        """Return parameters on which the loss of some batch did not depend, unless allowed."""
        return [] if self._may_leave_out else [self._names[n] for n in sorted(self._left_out)]

    @torch.no_grad()
    def finish(self) -> None:
        """Replace the gradients by their means over all shards, unless that is done.

        The gate reports whether they are complete.

        Raises:
            Exception: the group broke.
        """
        if self._slot is None:
            return
        self._slot = None
        self._note_left_out()
        used = self._used()
        for memory in self._memories:
            for number, row in self._empty(memory):
                memory.view(row, number).zero_()
            if self._assignment.exact:
                self._sum_in_order(memory)
            else:
                self._sum(memory)
            for number in memory.numbers:
                parameter = self._parameters[number]
                parameter.grad = memory.view(0, number) if number in used else None

    @torch.no_grad()
    def _take(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if self._slot is None or gradient is None:
            return
        if number in self._seen:
            raise ConfigurationError(
                f"{self._names[number]} got a gradient twice in one batch: add up the losses of a "
                "batch, and call backward() once"
            )
        self._seen.add(number)
        if self._weight > 0:
            row = self._slot if self._assignment.exact else 0
            kept = next(m for m in self._memories if number in m.offsets).view(row, number)
            if (row, number) in self._written:
                kept.add_(gradient, alpha=self._weight)
            else:
                torch.mul(gradient, self._weight, out=kept)
                self._written.add((row, number))
        if self._is_last and not self._is_queued:
            self._is_queued = True
            Variable._execution_engine.queue_callback(self._when_computed)

    def _note_left_out(self) -> None:
        self._left_out |= set(range(len(self._parameters))) - self._seen

    def _used(self) -> Collection[int]:
        """Return the parameters for which some rank has a gradient."""
        every = range(len(self._parameters))
        if not self._may_leave_out:
            return every
        own = {number for _, number in self._written}
        counts = self._group.sum(*(number in own for number in every))
        return {number for number in every if counts[number] > 0}

    def _empty(self, memory: _Memory) -> Iterator[tuple[int, int]]:
        for row in range(len(memory.flat)):
            if not self._assignment.exact or self._assignment.counts(row):
                for number in memory.numbers:
                    if (row, number) not in self._written:
                        yield number, row

    def _sum(self, memory: _Memory) -> None:
        whole = memory.flat[0].div_(self._assignment.shards)
        travelling = whole if self._travel_as is None else whole.to(self._travel_as)
        self._group.all_reduce(*(travelling[begin:end] for begin, end in memory.pieces))
        if travelling is not whole:
            fill(whole, travelling)

    def _sum_in_order(self, memory: _Memory) -> None:
        assignment = self._assignment
        for begin, end in memory.pieces:
            own = memory.flat[:, begin:end].reshape(assignment.slots, assignment.size, -1)
            sent = own.transpose(0, 1).contiguous()
            came = torch.empty_like(sent)
            self._group.all_to_all(sent, came)
            total = torch.empty_like(came[0, 0])
            mean_in_order(total, came, assignment)
            self._group.all_gather(total, memory.flat[0, begin:end])


class _Memory:
    """Gradients of one type, one after the other, in rows."""

    def __init__(self, parameters: dict[int, Tensor], rows: int, width: int, parts: int) -> None:
        """`parameters` by number. A row is divided into pieces of `width`, each of equal parts."""
        self.offsets: dict[int, int] = {}
        self._shapes = {number: parameter.shape for number, parameter in parameters.items()}
        end = 0
        for number, parameter in parameters.items():
            self.offsets[number] = end
            end += parameter.numel()
        end = -(-end // parts) * parts
        width = max(1, width // parts) * parts
        [some, *_] = parameters.values()
        self.flat = torch.zeros(rows, end, dtype=some.dtype, device=some.device)
        self.pieces = [(begin, min(begin + width, end)) for begin in range(0, end, width)]

    @property
    def numbers(self) -> Collection[int]:
        """Return the numbers of the parameters."""
        return self.offsets.keys()

    def view(self, row: int, number: int) -> Tensor:
        """Return the memory of a parameter's gradient."""
        shape, begin = self._shapes[number], self.offsets[number]
        return self.flat[row, begin : begin + shape.numel()].view(shape)


def fill(whole: Tensor, travelled: Tensor) -> None:
    """Copy gradients that travelled as another type back."""
    whole.copy_(travelled)


def mean_in_order(total: Tensor, came: Tensor, assignment: ShardAssignment) -> None:
    """Compute the mean of all shards, summed in order; `came` has them by rank and slot."""
    total.copy_(came[0, 0])
    for shard in range(1, assignment.shards):
        total.add_(came[assignment.owner(shard)])
    total.div_(assignment.shards)


def _memories(
    parameters: list[nn.Parameter], *, rows: int, piece_bytes: int, parts: int
) -> list[_Memory]:
    alike: dict[tuple[torch.dtype, torch.device], dict[int, Tensor]] = {}
    for number, parameter in enumerate(parameters):
        alike.setdefault((parameter.dtype, parameter.device), {})[number] = parameter
    return [
        _Memory(some, rows, max(1, piece_bytes // dtype.itemsize), parts)
        for (dtype, _), some in alike.items()
    ]
