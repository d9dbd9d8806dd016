"""The operations of the benchmark, each with its message and its expected result.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md there), so that values are comparable.
The size is that of the whole message. The bus bandwidth is the load of the slowest link, for any
number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from ddp_trainer.collectives.group import Group
from ddp_trainer.process_group.failures import is_lost_peer

DTYPE = torch.float32
"""DDP's default type of gradients."""

_PERIOD = 8
"""Messages repeat small whole numbers: floats hold their sums over ranks exactly."""
_UNSUPPORTED = re.compile(
    r"not (currently )?support|unsupported|not implemented|Backend .*not", re.I
)

# torch 2.13 renames them and warns about the old names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation with one message size, as one rank runs it."""

    count: int
    """Numbers that this rank contributes or keeps."""
    size_bytes: int
    """Size of the whole message."""
    bus_factor: float
    """Bus bandwidth / algorithm bandwidth."""
    source: Tensor
    """Holds this rank's contribution."""
    contribution: Callable[[], Tensor]
    run: Callable[[], object]
    """Runs the operation once; on a GPU, starts it."""
    result: Tensor
    """Holds the result; may be the source."""
    expected: Callable[[], Tensor]

    def fill(self) -> None:
        """Write this rank's contribution to `source`, after erasing the old result."""
        self.result.fill_(-1)
        self.source.copy_(self.contribution())

    def wrong(self) -> int:
        """Run once and count the wrong numbers on this rank."""
        self.fill()
        self.run()
        return int((self.result != self.expected()).sum())


def _all_reduce(group: Group, size_bytes: int) -> Operation:
    """Every rank gets the sum."""
    count = _count(size_bytes, parts=1)
    buffer = _empty(group, count)
    return Operation(
        count=count,
        size_bytes=count * DTYPE.itemsize,
        bus_factor=2 * (group.size - 1) / group.size,
        source=buffer,
        contribution=lambda: _of_rank(group, group.rank, count),
        run=lambda: dist.all_reduce(buffer),
        result=buffer,
        expected=lambda: _sum_of_ranks(group, count),
    )


def _all_gather(group: Group, size_bytes: int) -> Operation:
    """Every rank gets the parts of all ranks."""
    count = _count(size_bytes, parts=group.size)
    part, whole = _empty(group, count), _empty(group, count * group.size)
    return Operation(
        count=count,
        size_bytes=count * group.size * DTYPE.itemsize,
        bus_factor=(group.size - 1) / group.size,
        source=part,
        contribution=lambda: _of_rank(group, group.rank, count),
        run=lambda: _all_gather_single(whole, part),
        result=whole,
        expected=lambda: torch.cat([_of_rank(group, rank, count) for rank in range(group.size)]),
    )


def _broadcast(group: Group, size_bytes: int) -> Operation:
    """Every rank gets the message of rank 0."""
    count = _count(size_bytes, parts=1)
    buffer = _empty(group, count)
    return Operation(
        count=count,
        size_bytes=count * DTYPE.itemsize,
        bus_factor=1.0,
        source=buffer,
        contribution=lambda: _of_rank(group, 0, count) if group.rank == 0 else buffer,
        run=lambda: dist.broadcast(buffer, src=0),
        result=buffer,
        expected=lambda: _of_rank(group, 0, count),
    )


def _reduce_scatter(group: Group, size_bytes: int) -> Operation:
    """Every rank gets its part of the sum."""
    count = _count(size_bytes, parts=group.size)
    part, whole = _empty(group, count), _empty(group, count * group.size)
    mine = slice(group.rank * count, (group.rank + 1) * count)
    return Operation(
        count=count,
        size_bytes=count * group.size * DTYPE.itemsize,
        bus_factor=(group.size - 1) / group.size,
        source=whole,
        contribution=lambda: _of_rank(group, group.rank, len(whole)),
        run=lambda: _reduce_scatter_single(part, whole),
        result=part,
        expected=lambda: _sum_of_ranks(group, len(whole))[mine],
    )


def _send_recv(group: Group, size_bytes: int) -> Operation:
    """Every rank sends to the next rank while it receives from the previous one."""
    count = _count(size_bytes, parts=1)
    outgoing, incoming = _empty(group, count), _empty(group, count)
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return Operation(
        count=count,
        size_bytes=count * DTYPE.itemsize,
        bus_factor=1.0,
        source=outgoing,
        contribution=lambda: _of_rank(group, group.rank, count),
        run=lambda: exchange(outgoing, following, incoming, previous),
        result=incoming,
        expected=lambda: _of_rank(group, previous, count),
    )


Builder = Callable[[Group, int], Operation]
"""Makes an operation for a size in bytes, rounded down to a multiple that divides, but not to 0."""

OPERATIONS: Mapping[str, Builder] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce_scatter": _reduce_scatter,
    "send_recv": _send_recv,
}


def _count(size_bytes: int, *, parts: int) -> int:
    return max(1, size_bytes // DTYPE.itemsize // parts)


def _empty(group: Group, count: int) -> Tensor:
    return torch.zeros(count, dtype=DTYPE, device=group.device)


def _of_rank(group: Group, rank: int, count: int) -> Tensor:
    return _repeated(group, [(i + rank) % _PERIOD for i in range(_PERIOD)], count)


def _sum_of_ranks(group: Group, count: int) -> Tensor:
    ranks = range(group.size)
    sums = [sum((i + rank) % _PERIOD for rank in ranks) for i in range(_PERIOD)]
    return _repeated(group, sums, count)


def _repeated(group: Group, period: Sequence[int], count: int) -> Tensor:
    tile = torch.tensor(period, dtype=DTYPE, device=group.device)
    return tile.repeat(-(-count // _PERIOD))[:count]


def exchange(outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
    """Send and receive at the same time."""
    operations = [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def why_unsupported(build: Builder, group: Group) -> str | None:
    """Try an operation with the smallest message; None: this backend supports it.

    A backend refuses before it sends anything, on all ranks equally.
    """
    try:
        build(group, DTYPE.itemsize).run()
    except (NotImplementedError, RuntimeError) as error:
        if is_lost_peer(error) or not _UNSUPPORTED.search(str(error)):
            raise
        return str(error).splitlines()[0]
    return None
