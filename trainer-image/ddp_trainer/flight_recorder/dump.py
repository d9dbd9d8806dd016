"""Reduces what one rank's flight recorder wrote to the few kilobytes that name the rank of a hang.

torch writes a dump as a pickle or as JSON. The recorder's own page in torch's documentation names
the fields; versions 2.0 to 2.10 of the format differ only in fields that are optional here. Three
of its habits need care. Operations inside a coalesced block never change their state: only the
entry that ends the block does. Gloo marks a finished operation as retired, never as completed. A
group that forms again in a process has the same name and counts from 1 again, under a new `pg_id`.

The dump may come from a hostile script. A pickle of a few kilobytes can refer to one list a million
times, so each list is looked at once.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ddp_trainer.flight_recorder.unpickle import MAX_OPCODES, BadPickleError, unpickle

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of a dump; one of 20,000 entries with stacks has about 20 MB."""
_MOST_ENTRIES: Final = 20_000
_MOST_REDUCED: Final = 8 * 1024
"""Most bytes of a reduced dump; for one group it has about 600."""
_KEPT: Final = 4
"""How many finished and unfinished collectives of each group to keep: the hang is between them."""
_KEPT_TRANSFERS: Final = 32
"""The same for sends and receives: a rank may have one open with each other rank."""
_MAX_RANKS: Final = 65536
_MOST_FRAMES: Final = 64
_MOST_SHAPES: Final = 4
_MOST_DIMENSIONS: Final = 8
_TEXT: Final = 200
"""Most characters of a name."""
_WORD: Final = 64
_LARGEST: Final = 2**53 - 1
_RANKS: Final = re.compile(r"\[[\d, ]*\]")
_PEERS: Final = re.compile(r"(\d{1,6})(->|<-)(\d{1,6})")
_END_OF_BLOCK: Final = "coalesced"
_TORCH: Final = "/torch/distributed/"


class DumpError(ValueError):
    """The bytes are no dump of a flight recorder; the message says why."""


class _Tensors(NamedTuple):
    """The tensors of an operation: the first shapes, their number, and that of all elements."""

    shapes: tuple[str, ...] = ()
    number: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class _Op:
    """An operation that a rank entered: it was queued on the rank's stream."""

    group: str
    seq: int
    """Counts the collectives of the group, or, if `is_p2p`, the rank's own transfers."""
    name: str
    record: int
    """Position in the order in which the rank entered operations of all groups."""
    created_us: int
    tensors: _Tensors
    dtypes: str
    done: bool
    started: bool
    peer: int
    """The other side of a send or recv, its rank in the group; -1: none."""
    frames: object


def reduce_dump(data: bytes) -> dict[str, Any]:
    """Return the groups of a dump, a pickle or JSON, with their newest operations as plain JSON.

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
    found = [entry for entry in entries[-_MOST_ENTRIES:] if isinstance(entry, dict)]
    reduced = _reduced(content, found)
    if len(json.dumps(reduced)) > _MOST_REDUCED:
        raise DumpError("it has too many groups or operations that wait")
    return reduced


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


def _reduced(content: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    groups = dict(_groups(content.get("pg_config")))
    newest: dict[str, int] = {}
    for entry in entries:
        name, description = _pair(entry.get("process_group"))
        newest[name] = max(newest.get(name, -1), _int(entry.get("pg_id")))
        groups.setdefault(name, {"name": name, "description": description, "ranks": []})
    status = content.get("pg_status")
    for name, counts in _status(status, [*groups], newest).items():
        groups[name]["counts"] = counts
    ops = _ops(
        entry
        for entry in entries
        if _int(entry.get("pg_id")) == newest[_pair(entry.get("process_group"))[0]]
    )
    calls: dict[tuple[str, str, _Tensors], int] = {}
    last: _Op | None = None
    for (group, is_p2p), own in ops.items():
        for op in _kept(own, _KEPT_TRANSFERS if is_p2p else _KEPT):
            call = calls.setdefault((op.name, op.dtypes, op.tensors), len(calls))
            values = [op.seq, op.record, op.created_us, op.started + 2 * op.done, call]
            kept = groups[group].setdefault("transfers" if is_p2p else "collectives", [])
            kept.append([*values, op.peer] if is_p2p else values)
        if own and (last is None or own[-1].record > last.record):
            last = own[-1]
    records = [_int(entry.get("record_id")) for entry in entries]
    is_complete = records == [*range(len(records))] and (records != [] or status == {})
    return {
        "groups": [*groups.values()],
        "calls": [
            {"name": name, "dtypes": dtypes, "shapes": _shown(tensors), "elements": tensors[2]}
            for name, dtypes, tensors in calls
        ],
        "complete": is_complete,
        "at": _place(last.frames) if last else "",
    }


def _kept(ops: list[_Op], most: int) -> list[_Op]:
    """Return the last finished operations, the first unfinished ones, and the last.

    A rank waits in the first one that is not finished; the others show an earlier difference.
    """
    done, waiting = ([op for op in ops if op.done is done] for done in (True, False))
    kept = {id(op): op for op in (*done[-_KEPT:], *waiting[:most], *waiting[-1:])}
    return sorted(kept.values(), key=lambda op: op.record)


def _groups(config: object) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, group in config.items() if isinstance(config, dict) else ():
        if name and isinstance(name, str) and isinstance(group, dict):
            text, ranks = _text(name), group.get("ranks")
            spans = _spans(_ranks(ranks)) if isinstance(ranks, str) else []
            yield text, {"name": text, "description": _text(group.get("desc")), "ranks": spans}


def _ranks(text: str) -> list[int]:
    """Return the ranks of a text such as `[0, 1, 2]`."""
    if not _RANKS.fullmatch(text, 0, _MAX_RANKS * 8):
        return []
    return [*dict.fromkeys(int(rank) for rank in re.findall(r"\d{1,6}", text))][:_MAX_RANKS]


def _spans(ranks: list[int]) -> list[list[int]]:
    """Return ranks as spans of a first rank, a step and a count."""
    spans: list[list[int]] = []
    for rank in ranks:
        first, step, count = spans[-1] if spans else (rank, 0, 0)
        if count == 1 or (count and rank == first + step * count):
            spans[-1] = [first, rank - first if count == 1 else step, count + 1]
        else:
            spans.append([rank, 1, 1])
    return spans


def _status(
    content: object, groups: list[str], newest: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return the recorder's own counts by group, of entered and of completed operations.

    They also count transfers, so they are only a hint. They have only a `pg_id`, which grows like
    the groups' names.
    """
    found: dict[int, tuple[int, int]] = {}
    for pg_id, status in content.items() if isinstance(content, dict) else ():
        if isinstance(status, dict):
            found[_int(pg_id)] = (
                _count(status.get("last_enqueued_collective"), least=-1),
                _count(status.get("last_completed_collective"), least=-1),
            )
    names = {pg_id: name for name, pg_id in newest.items()}
    if all(name.isdecimal() for name in groups):
        # Groups are recorded when they are used for the first time, or all when they are created.
        ids = sorted(found) if len(found) == len(groups) else range(len(groups))
        ordered = dict(zip(ids, sorted(groups, key=_int), strict=True))
        if content and all(ordered.get(pg_id) == name for pg_id, name in names.items()):
            return {name: found.get(pg_id, (0, 0)) for pg_id, name in ordered.items()}
    return {names[pg_id]: counts for pg_id, counts in found.items() if pg_id in names}


def _ops(entries: Iterable[Mapping[str, Any]]) -> Mapping[tuple[str, bool], list[_Op]]:
    """Return the operations of each group in order; `True`: those between two ranks.

    Those of a coalesced block have the state of its end.
    """
    reader = _Reader()
    blocks: dict[tuple[str, bool, int], list[_Op]] = defaultdict(list)
    for entry in entries:
        op, is_p2p = reader.op(entry)
        blocks[op.group, is_p2p, op.seq].append(op)
    found: dict[tuple[str, bool], list[_Op]] = defaultdict(list)
    for (group, is_p2p, _), block in blocks.items():
        ops = block
        if len(block) > 1:
            end = next((op for op in block if op.name == _END_OF_BLOCK), None)
            # A dump of the active operations lacks the end of a block that has completed.
            done, started = (end.done, end.started) if end else (True, True)
            inner = [
                replace(op, done=done, started=started) for op in block if op.name != _END_OF_BLOCK
            ]
            ops = inner if is_p2p else [_merged(inner or block)]
        for op in ops:
            found[group, is_p2p and op.name in ("send", "recv")].append(op)
    for ops in found.values():
        ops.sort(key=lambda op: op.record)
    return found


def _merged(ops: list[_Op]) -> _Op:
    """Return one operation for the collectives of a coalesced block, which count as one."""
    shapes = tuple(shape for op in ops[:_MOST_SHAPES] for shape in op.tensors.shapes)
    tensors = _Tensors(
        shapes[:_MOST_SHAPES],
        sum(op.tensors.number for op in ops),
        min(sum(op.tensors.elements for op in ops), _LARGEST),
    )
    dtypes = "/".join(dict.fromkeys(op.dtypes for op in ops if op.dtypes))
    return replace(ops[0], tensors=tensors, dtypes=dtypes[:_WORD])


class _Reader:
    """Reads entries. It looks at each list once, however often the dump refers to it."""

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[str, int]] = {}
        self._tensors: dict[int, _Tensors] = {}
        self._dtypes: dict[int, str] = {}

    def op(self, entry: Mapping[str, Any]) -> tuple[_Op, bool]:
        """Return the operation of an entry, and whether it is between two ranks."""
        backend, _, name = _text(entry.get("profiling_name")).partition(":")
        name, _, peers = name.partition(" ")
        is_p2p = bool(entry.get("is_p2p")) or name in ("send", "recv")
        match = _PEERS.fullmatch(peers)
        done = entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
        op = _Op(
            group=_pair(entry.get("process_group"))[0],
            seq=_count(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id")),
            name=name[:_WORD],
            record=_count(entry.get("record_id")),
            created_us=_count(_int(entry.get("time_created_ns")) // 1000),
            tensors=self._of_tensors(entry.get("input_sizes")),
            dtypes=self._of_dtypes(entry.get("input_dtypes")),
            # NCCL retires an operation that has timed out, too.
            done=done or (backend == "gloo" and entry.get("retired") is True),
            started=entry.get("state") == "started"
            or bool(entry.get("time_discovered_started_ns")),
            peer=int(match[3]) if match else -1,
            frames=entry.get("frames"),
        )
        return op, is_p2p

    def _of_tensors(self, value: object) -> _Tensors:
        known = self._tensors.get(id(value))
        if known is None:
            shapes = [self._of_shape(each) for each in _list(value)]
            first = tuple(text for text, _ in shapes[:_MOST_SHAPES])
            elements = min(sum(elements for _, elements in shapes), _LARGEST)
            known = self._tensors[id(value)] = _Tensors(first, len(shapes), elements)
        return known

    def _of_shape(self, value: object) -> tuple[str, int]:
        known = self._shapes.get(id(value))
        if known is None:
            elements = 1
            for size in _list(value):
                elements = min(elements * max(_int(size), 0), _LARGEST)
            sizes = [str(_int(size)) for size in _list(value)[:_MOST_DIMENSIONS]]
            known = self._shapes[id(value)] = "x".join(sizes) or "scalar", elements
        return known

    def _of_dtypes(self, value: object) -> str:
        known = self._dtypes.get(id(value))
        if known is None:
            each = dict.fromkeys(_text(dtype)[:_WORD] for dtype in _list(value))
            known = self._dtypes[id(value)] = "/".join(each)[:_WORD]
        return known


def _shown(tensors: _Tensors) -> str:
    """Return text such as `4x8, 16 and 2 more`."""
    more = tensors.number - len(tensors.shapes)
    return ", ".join(tensors.shapes) + (f" and {more} more" if more else "")


def _place(frames: object) -> str:
    """Return where the script is, such as `train.py:20 in step`."""
    for frame in _list(frames)[:_MOST_FRAMES]:
        if isinstance(frame, dict) and _TORCH not in (file := _text(frame.get("filename"))):
            name = _text(frame.get("name"))[:_WORD]
            return f"{file.rpartition('/')[2][:_WORD]}:{_int(frame.get('line'))} in {name}"
    return ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _pair(value: object) -> tuple[str, str]:
    """Return a group's name and description."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return "", ""


def _text(value: object) -> str:
    """Return a text that can be encoded, cut to a length."""
    return value[:_TEXT].encode(errors="replace").decode() if isinstance(value, str) else ""


def _int(value: object) -> int:
    """Return a number; JSON dumps have some as text. -1: there is none."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else -1


def _count(value: object, *, least: int = 0) -> int:
    return min(max(_int(value), least), _LARGEST)
