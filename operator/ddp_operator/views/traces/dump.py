"""Reads what one rank's flight recorder wrote.

torch writes a dump as a pickle or as JSON. The recorder's own page in torch's documentation names
the fields; versions 2.0 to 2.10 of the format differ only in fields that are optional here. Three
of its habits need care. Operations inside a coalesced block never change their state: only the
entry that ends the block does. Gloo marks a finished operation as retired, never as completed. A
group that forms again in a process has the same name and counts from 1 again, under a new `pg_id`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ddp_operator.views.traces.unpickle import MAX_OPCODES, BadPickleError, unpickle

MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of a dump; one of 20,000 entries with stacks has about 20 MB."""
_MAX_DONE: Final = 500
"""Most completed operations that are kept of a rank; they only show an earlier difference."""
_MAX_RANKS: Final = 65536
_MAX_FRAMES: Final = 64
_TEXT: Final = 200
"""Most characters of a name."""
_RANKS: Final = re.compile(r"\[[\d, ]*\]")
_PEERS: Final = re.compile(r"(\d{1,6})(->|<-)(\d{1,6})")
_END_OF_BLOCK: Final = "coalesced"

Sizes = tuple[tuple[int, ...], ...]


class DumpError(ValueError):
    """The bytes are no dump of a flight recorder; the message says why."""


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Op:
    """An operation that a rank entered: it was queued on the rank's stream."""

    group: str
    seq: int
    """Counts the collectives of the group, or, if `peer` is set, the rank's own transfers."""
    name: str
    record: int
    """Position in the order in which the rank entered operations of all groups."""
    created_ns: int
    inputs: Sizes
    outputs: Sizes
    dtypes: tuple[str, ...]
    done: bool
    started: bool
    peer: int | None = None
    """The other side of a send or recv: its rank in the group."""
    frames: tuple[Frame, ...] = ()
    """The stack that entered it, innermost frame first."""

    @property
    def is_p2p(self) -> bool:
        """Tell whether it is a send or recv."""
        return self.name in ("send", "recv")


class Group(NamedTuple):
    """A process group, as one rank knows it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Its global ranks in the order of their ranks in the group; empty if not recorded."""


class Status(NamedTuple):
    """The recorder's own count of a group. It also counts transfers, so it is only a hint."""

    entered: int
    completed: int


@dataclass(frozen=True)
class Dump:
    """A rank's dump: its groups, and its operations in the order in which it entered them."""

    version: str
    groups: Mapping[str, Group]
    ops: tuple[Op, ...]
    status: Mapping[str, Status]
    is_complete: bool
    """It has all operations since the process began."""


def read_dump(data: bytes) -> Dump:
    """Read a dump, a pickle or JSON.

    Raises:
        DumpError: it is none, or too large.
    """
    if len(data) > MAX_BYTES:
        raise DumpError(f"it is larger than {MAX_BYTES >> 20} MB")
    content = _json(data) if data[:1] == b"{" else _pickle(data)
    if not isinstance(content, dict) or not isinstance(content.get("pg_status"), dict | None):
        raise DumpError("it is no dump of a flight recorder")
    version = _text(content.get("version"))
    if not version.startswith("2."):
        said = f"its format is {version!r}" if version else "it names no format"
        raise DumpError(f"{said}, not 2.x: torch 2.7 and later write that")
    entries = content.get("entries") or []
    if not isinstance(entries, list):
        raise DumpError("its entries are no list")
    groups = {group.name: group for group in _groups(content.get("pg_config"))}
    found = [entry for entry in entries if isinstance(entry, dict)]
    newest: dict[str, int] = {}
    for entry in found:
        name = _pair(entry.get("process_group"))[0]
        newest[name] = max(newest.get(name, -1), _int(entry.get("pg_id")))
    for entry in found:
        name, description = _pair(entry.get("process_group"))
        groups.setdefault(name, Group(name, description, ()))
    ops = _ops(
        entry
        for entry in found
        if _int(entry.get("pg_id")) == newest[_pair(entry.get("process_group"))[0]]
    )
    status = content.get("pg_status")
    records = [_int(entry.get("record_id")) for entry in found]
    return Dump(
        version,
        groups,
        _kept(ops),
        _status(status, groups, newest),
        is_complete=records == [*range(len(records))] and (records != [] or status == {}),
    )


def _pickle(data: bytes) -> object:
    if data[:1] != b"\x80":
        raise DumpError("it is neither a pickle nor JSON")
    try:
        return unpickle(data)
    except BadPickleError as error:
        raise DumpError(str(error)) from None


def _json(data: bytes) -> object:
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_OPCODES:
        raise DumpError(f"it has more than {MAX_OPCODES} values")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise DumpError("it is no valid JSON, or is cut off") from None


def _groups(config: object) -> Iterator[Group]:
    for name, group in config.items() if isinstance(config, dict) else ():
        if name and isinstance(name, str) and isinstance(group, dict):
            ranks = group.get("ranks")
            yield Group(
                name[:_TEXT],
                _text(group.get("desc")),
                _ranks(ranks) if isinstance(ranks, str) else (),
            )


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `[0, 1, 2]`."""
    if not _RANKS.fullmatch(text, 0, _MAX_RANKS * 8):
        return ()
    return tuple(dict.fromkeys(int(rank) for rank in re.findall(r"\d{1,6}", text)))[:_MAX_RANKS]


def _status(
    content: object, groups: Mapping[str, Group], newest: Mapping[str, int]
) -> dict[str, Status]:
    """Return the counts by group. They have only a `pg_id`, which grows like the groups' names."""
    found: dict[int, Status] = {}
    for pg_id, status in content.items() if isinstance(content, dict) else ():
        if isinstance(status, dict):
            found[_int(pg_id)] = Status(
                _int(status.get("last_enqueued_collective")),
                _int(status.get("last_completed_collective")),
            )
    names = {pg_id: name for name, pg_id in newest.items()}
    if all(name.isdecimal() for name in groups):
        # Groups are recorded when they are used for the first time, or all when they are created.
        ids = sorted(found) if len(found) == len(groups) else range(len(groups))
        ordered = dict(zip(ids, sorted(groups, key=int), strict=True))
        if content and all(ordered.get(pg_id) == name for pg_id, name in names.items()):
            return {name: found.get(pg_id, Status(0, 0)) for pg_id, name in ordered.items()}
    return {names[pg_id]: status for pg_id, status in found.items() if pg_id in names}


def _ops(entries: Iterable[Mapping[str, Any]]) -> list[Op]:
    """Return the operations; those of a coalesced block have the state of its end."""
    blocks: dict[tuple[str, bool, int], list[Op]] = defaultdict(list)
    for entry in entries:
        op, is_p2p = _op(entry)
        blocks[op.group, is_p2p, op.seq].append(op)
    found: list[Op] = []
    for (_, is_p2p, _), block in blocks.items():
        if len(block) == 1:
            found += block
            continue
        end = next((op for op in block if op.name == _END_OF_BLOCK), None)
        # A dump of the active operations lacks the end of a block that has completed.
        done, started = (end.done, end.started) if end else (True, True)
        inner = [
            replace(op, done=done, started=started) for op in block if op.name != _END_OF_BLOCK
        ]
        found += inner if is_p2p else [_merged(inner or block)]
    return sorted(found, key=lambda op: op.record)


def _merged(ops: list[Op]) -> Op:
    """Return one operation for the collectives of a coalesced block, which count as one."""
    return replace(
        ops[0],
        inputs=tuple(sizes for op in ops for sizes in op.inputs),
        outputs=tuple(sizes for op in ops for sizes in op.outputs),
        dtypes=tuple(dtype for op in ops for dtype in op.dtypes),
    )


def _op(entry: Mapping[str, Any]) -> tuple[Op, bool]:
    backend, _, name = _text(entry.get("profiling_name")).partition(":")
    name, _, peers = name.partition(" ")
    is_p2p = bool(entry.get("is_p2p")) or name in ("send", "recv")
    match = _PEERS.fullmatch(peers)
    done = entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
    op = Op(
        group=_pair(entry.get("process_group"))[0],
        seq=_int(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id")),
        name=name,
        record=_int(entry.get("record_id")),
        created_ns=_int(entry.get("time_created_ns")),
        inputs=_sizes(entry.get("input_sizes")),
        outputs=_sizes(entry.get("output_sizes")),
        dtypes=tuple(_text(each) for each in _list(entry.get("input_dtypes"))),
        # NCCL retires an operation that has timed out, too.
        done=done or (backend == "gloo" and entry.get("retired") is True),
        started=entry.get("state") == "started" or bool(entry.get("time_discovered_started_ns")),
        peer=int(match[3]) if match else None,
        frames=_shared(
            tuple(
                Frame(
                    _text(frame.get("filename")), _int(frame.get("line")), _text(frame.get("name"))
                )
                for frame in _list(entry.get("frames"))[:_MAX_FRAMES]
                if isinstance(frame, dict)
            )
        ),
    )
    return op, is_p2p


@lru_cache(maxsize=4096)
def _shared(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the first of equal stacks, so that those of many ranks are kept once."""
    return frames


def _kept(ops: list[Op]) -> tuple[Op, ...]:
    """Leave out the oldest completed operations."""
    surplus = sum(op.done for op in ops) - _MAX_DONE
    found = []
    for op in ops:
        if op.done and surplus > 0:
            surplus -= 1
        else:
            found.append(op)
    return tuple(found)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _pair(value: object) -> tuple[str, str]:
    """Return a group's name and description."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return "", ""


def _sizes(value: object) -> Sizes:
    return tuple(tuple(_int(size) for size in _list(each)[:16]) for each in _list(value)[:4096])


def _text(value: object) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""


def _int(value: object) -> int:
    """Return a number; JSON dumps have some as text. -1: there is none."""
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        return int(value)
    return value if isinstance(value, int) else -1
