"""The operations of a job's ranks, as their launchers reduce the dumps of torch's flight recorder.

The answers come from pods. What all pods of a job may show together is limited here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from ddp_protocol.message import Bounds, Count, InvalidMessageError, Message

_Name = Annotated[str, Bounds(0, 200)]
_Word = Annotated[str, Bounds(0, 64)]
_Number = Annotated[int, Bounds(-1, 2**53 - 1)]
_Place = Annotated[int, Bounds(-(2**16), 2**16)]
_Span = Annotated[tuple[_Place, ...], Bounds(3, 3)]
_Values = Annotated[tuple[_Number, ...], Bounds(5, 6)]
_Ops = Annotated[tuple[_Values, ...], Bounds(0, 256)]
_STARTED: Final = 1
_DONE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of torch.distributed."""

    name: _Word
    dtypes: _Word
    shapes: Annotated[str, Bounds(0, 1024)]
    """Of the first tensors, such as `4x8, 16 and 2 more`."""
    elements: Count
    """Of all tensors that the rank gave."""


@dataclass(frozen=True, kw_only=True)
class ReportedGroup:
    """A process group, as one rank knows it."""

    name: _Name
    description: _Name
    ranks: Annotated[tuple[_Span, ...], Bounds(0, 1024)]
    """Spans of a first global rank, a step and a count, in the order of the ranks in the group;
    empty if not recorded."""
    counts: Annotated[tuple[_Number, ...], Bounds(2, 2)] | None = None
    """The recorder's own numbers of entered and completed operations. They include transfers, so
    they are only a hint."""
    collectives: _Ops = ()
    """Sequence number, record, microseconds of Unix time, state, index of the call."""
    transfers: _Ops = ()
    """Sends and receives: the same, and the rank in the group of the other side."""


@dataclass(frozen=True, kw_only=True)
class Trace(Message):
    """The newest operations of a rank in each group."""

    groups: Annotated[tuple[ReportedGroup, ...], Bounds(0, 256)]
    calls: Annotated[tuple[Call, ...], Bounds(0, 512)]
    complete: bool
    """The dump has all operations since the process began."""
    at: _Name = ""
    """Where the script entered the last operation."""


class Op(NamedTuple):
    """An operation that a rank entered: it was queued on the rank's stream."""

    seq: int
    """Counts the collectives of the group, or the rank's own transfers."""
    record: int
    """Position in the order in which the rank entered operations of all groups."""
    created_us: int
    state: int
    """The sum of 1, if the device is known to have started it, and 2, if it has completed."""
    call: Call
    peer: int = -1
    """The other side of a send or recv: its rank in the group; -1: unknown."""

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return self.call.name

    @property
    def done(self) -> bool:
        """Tell whether it has completed."""
        return bool(self.state & _DONE)

    @property
    def started(self) -> bool:
        """Tell whether the device is known to have started it."""
        return bool(self.state & _STARTED)

    @property
    def is_p2p(self) -> bool:
        """Tell whether it is a send or recv."""
        return self.name in ("send", "recv")


GroupKey = tuple[str, tuple[tuple[int, ...], ...]]
"""Name and ranks of a group: groups of different ranks may have one name."""


class GroupOps(NamedTuple):
    """A rank's operations in a group, in the order in which it entered them."""

    key: GroupKey
    description: str
    counts: tuple[int, int] | None
    collectives: list[Op]
    transfers: list[Op]


@dataclass(frozen=True, slots=True)
class Dump:
    """A rank's groups by name, and its operations."""

    groups: Mapping[str, GroupOps]
    is_complete: bool
    at: str

    @property
    def knows_ranks(self) -> bool:
        """Tell whether it shows the ranks of groups."""
        return any(group.key[1] for group in self.groups.values())

    @property
    def last(self) -> tuple[GroupOps, Op] | None:
        """Return the last operation that the rank entered, with its group."""
        ops = [
            (group, op)
            for group in self.groups.values()
            for op in (*group.collectives, *group.transfers)
        ]
        return max(ops, key=lambda each: each[1].record, default=None)


def dump_of(trace: Trace) -> Dump:
    """Return the operations of a trace.

    Raises:
        InvalidMessageError: it refers to a call that it does not have.
    """
    groups = {}
    for group in trace.groups:
        key = group.name, group.ranks
        counts = (group.counts[0], group.counts[1]) if group.counts else None
        ops, transfers = _ops(group.collectives, trace), _ops(group.transfers, trace)
        groups[group.name] = GroupOps(key, group.description, counts, ops, transfers)
    return Dump(groups, trace.complete, trace.at)


def _ops(rows: Sequence[Sequence[int]], trace: Trace) -> list[Op]:
    try:
        return [
            Op(seq, record, created, state, trace.calls[call], *peer)
            for seq, record, created, state, call, *peer in rows
        ]
    except IndexError:
        raise InvalidMessageError("calls: an operation's call is missing") from None
