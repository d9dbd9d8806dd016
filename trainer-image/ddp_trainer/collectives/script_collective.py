"""A collective that a script calls, in a form that can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions

_IN_PLACE = {"allreduce", "allreduce_coalesced", "broadcast", "reduce"}
_ALL_GATHER = {
    *("allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("_allgather_base", "allgather_into_tensor_coalesced"),
}
_TO_ONE = {"reduce", "gather"}
_IN_PARTS = {"scatter", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"}
_MESSAGES = {"send", "recv", "recv_anysource"}


class Collective:
    """A method of a process group and the arguments from the script."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        """`arguments`: tensors that it writes, other tensors that it reads, options."""
        self.name = name
        self._arguments = arguments
        self._options: Any = arguments[-1] if arguments else None
        if not getattr(self._options, "asyncOp", True):
            # Since torch 2.8, NCCL then returns no work: the current stream waits.
            arguments[-1].asyncOp = True
        self.outputs = list(_tensors_of(arguments[:1]))
        self.inputs = list(_tensors_of(arguments[1:2])) or self.outputs

    @property
    def is_reduction(self) -> bool:
        """Return whether each member receives a part of a sum."""
        return self.name.strip("_").startswith("reduce_scatter")

    @property
    def is_message(self) -> bool:
        """Return whether it is between two ranks only, so that no other can repeat it."""
        return self.name in _MESSAGES

    @property
    def is_shared(self) -> bool:
        """Return whether the results of `begin_apart` are the same on all members."""
        return self.name in {"barrier", *_IN_PLACE, *_ALL_GATHER, *_TO_ONE, *_IN_PARTS}

    def begin(self, group: dist.ProcessGroup) -> dist.Work:
        """Begin the collective in the script's own tensors."""
        if self.name == "barrier":  # as a sum on the CPU: the wait for NCCL's own is in C++
            return _all_reduce(group, torch.zeros(1))
        work: dist.Work = getattr(group, self.name)(*self._arguments)
        return work

    def begin_apart(
        self, group: dist.ProcessGroup, *, rank: int, size: int
    ) -> tuple[dist.Work, list[Tensor]]:
        """Begin the collective in separate tensors; return the work and its results.

        Where possible, use a collective with the same results on all members. A member that lacks
        them can then receive them from another one.
        """
        if self.name == "barrier":
            return self.begin(group), []
        if self.name == "gather":
            [own] = self.inputs
            parts = [torch.empty_like(own) for _ in range(size)]
            return group.allgather([parts], [own], AllgatherOptions()), parts
        if self.name == "scatter":
            return self._scatter(group, rank=rank, size=size)
        if self.name in _IN_PARTS:
            shape = size, *self.outputs[0].shape
            whole = torch.cat([each.detach().reshape(-1) for each in self.inputs]).reshape(shape)
            return _all_reduce(group, whole, self._options.reduceOp), [whole]
        if self.name == "reduce":
            [copy] = (tensor.detach().clone() for tensor in self.outputs)
            return _all_reduce(group, copy, self._options.reduceOp), [copy]
        copies = [tensor.detach().clone() for tensor in self.outputs]
        fresh = _rebuilt(self._arguments[0], iter(copies))
        return getattr(group, self.name)(fresh, *self._arguments[1:]), copies

    def _scatter(
        self, group: dist.ProcessGroup, *, rank: int, size: int
    ) -> tuple[dist.Work, list[Tensor]]:
        [output] = self.outputs
        whole = output.new_empty((size, *output.shape))
        options = BroadcastOptions()
        options.rootRank = self._options.rootRank
        if rank == options.rootRank:
            whole = torch.stack([part.detach() for part in self.inputs])
        return group.broadcast([whole], options), [whole]

    @torch.no_grad()
    def deliver(self, results: list[Tensor], *, rank: int) -> None:
        """Give the script the results of `begin_apart`, perhaps those of another member."""
        if self.name in _TO_ONE and rank != self._options.rootRank:
            return
        if self.name in _IN_PARTS:
            results = [results[0][rank]]
        for tensor, result in zip(self.outputs, results, strict=True):
            tensor.copy_(result.reshape(tensor.shape))

    @torch.no_grad()
    def keep_own(self, *, rank: int, size: int) -> None:
        """Give the script its own input in place of each member's, and zeros where it does not fit.

        Tensors that the collective changes in place stay as they are. Without this, others would be
        uninitialized memory.
        """
        if self.name in _IN_PLACE or self.is_message:
            return
        given = self.inputs
        if len(self.outputs) == 1 and len(given) == size:
            given = [given[rank]]
        for number, output in enumerate(self.outputs):
            own = given[min(number, len(given) - 1)]
            if own is output:
                output.zero_()
            elif own.numel() == output.numel():
                output.copy_(own.reshape(output.shape))
            elif own.numel() * size == output.numel():
                output.view(size, -1).copy_(own.reshape(1, -1).expand(size, -1))
            elif own.numel() == output.numel() * size:
                output.copy_(own.reshape(size, -1)[rank].reshape(output.shape))
            else:
                output.zero_()


def _all_reduce(
    group: dist.ProcessGroup, tensor: Tensor, kind: Any = dist.ReduceOp.SUM
) -> dist.Work:
    options = AllreduceOptions()
    options.reduceOp = kind
    return group.allreduce([tensor], options)


def _tensors_of(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from _tensors_of(each)


def _rebuilt(nested: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the same nested lists with other tensors."""
    if isinstance(nested, Tensor):
        return next(tensors)
    return [_rebuilt(each, tensors) for each in nested]
