"""The format of a snapshot file: a header of JSON and the bytes of all tensors behind it.

A file may come from another pod, so its reader trusts no number in it. Nothing in it is executed,
as a pickle would be.

    8 bytes   magic number
    8 bytes   length of the header, little-endian
    header    JSON: the snapshot's name, its plain data, and the place of each buffer
    zeros     up to the next multiple of 4096
    payload   the buffers, each at a multiple of 64 bytes
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddp_trainer.memory.volume import SnapshotName

MAX_HEADER_BYTES = 32 << 20
MAX_BUFFERS = 1 << 20
_MAGIC = b"DDPSNAP\n"
_VERSION = 1
_PREFIX = struct.Struct("<8sQ")
_PAGE_BYTES = 4096
_ALIGNED_BYTES = 64
"""More than any data type needs."""
_MOST_DIMENSIONS = 64
_LARGEST_DIMENSION = 2**48
_LONGEST_DTYPE = 32


class DamagedSnapshotError(ValueError):
    """The file is not a valid snapshot; the message says why."""


@dataclass(frozen=True)
class Buffer:
    """The place of a tensor or array in the payload."""

    dtype: str
    """Data type in the words of torch or numpy."""
    shape: tuple[int, ...]
    offset: int
    """From the start of the payload."""
    size: int
    """In bytes."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a snapshot file."""

    job_uid: str
    name: SnapshotName
    time: float
    """When it was saved: seconds since 1970."""
    tree: Any
    """The state with its plain data; a tensor is an index into `buffers`."""
    buffers: Sequence[Buffer]
    """In the order of their offsets."""

    @property
    def payload_size(self) -> int:
        """Return the number of bytes behind the header."""
        return _end(self.buffers[-1]) if self.buffers else 0


def place(kinds: Sequence[tuple[str, tuple[int, ...], int]]) -> list[Buffer]:
    """Give each buffer of a data type, a shape and a size in bytes its place in the payload."""
    offset, buffers = 0, []
    for dtype, shape, size in kinds:
        buffers.append(Buffer(dtype, shape, offset, size))
        offset = _aligned(offset + size, _ALIGNED_BYTES)
    return buffers


def encode(header: Header) -> bytes:
    """Return all bytes before the payload.

    Raises:
        ValueError: the plain data or the number of tensors is too large.
    """
    name = header.name
    text = json.dumps(
        {
            "version": _VERSION,
            "jobUid": header.job_uid,
            "name": str(name),
            "time": header.time,
            "tree": header.tree,
            "buffers": [
                [each.dtype, each.shape, each.offset, each.size] for each in header.buffers
            ],
        },
        separators=(",", ":"),
    ).encode()
    if len(text) > MAX_HEADER_BYTES or len(header.buffers) > MAX_BUFFERS:
        raise ValueError(
            f"the state has {len(text) >> 20} MiB outside of tensors and {len(header.buffers)} "
            f"tensors; the most is {MAX_HEADER_BYTES >> 20} MiB and {MAX_BUFFERS}: put long lists "
            "of numbers into tensors"
        )
    begin = _PREFIX.pack(_MAGIC, len(text)) + text
    return begin.ljust(_aligned(len(begin), _PAGE_BYTES), b"\0")


def decode(file: memoryview) -> tuple[Header, int]:
    """Return the header of a snapshot file and the offset of its payload.

    Raises:
        DamagedSnapshotError: it is not a valid snapshot.
    """
    if len(file) < _PREFIX.size:
        raise DamagedSnapshotError("it is shorter than a header")
    magic, length = _PREFIX.unpack_from(file)
    if magic != _MAGIC:
        raise DamagedSnapshotError("it does not begin as a snapshot")
    payload = _aligned(_PREFIX.size + length, _PAGE_BYTES)
    if length > MAX_HEADER_BYTES or payload > len(file):
        raise DamagedSnapshotError(f"its header of {length} bytes is too long")
    try:
        found = json.loads(bytes(file[_PREFIX.size : _PREFIX.size + length]))
    except (ValueError, RecursionError) as error:
        raise DamagedSnapshotError(f"its header is not valid JSON: {error!s:.80}") from error
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise DamagedSnapshotError(f"its format is not version {_VERSION}")
    name = SnapshotName.parse(_checked(found, "name", str))
    if name is None:
        raise DamagedSnapshotError("its name is not that of a snapshot")
    return (
        Header(
            job_uid=_checked(found, "jobUid", str),
            name=name,
            time=_checked(found, "time", float),
            tree=found.get("tree"),
            buffers=_buffers(_checked(found, "buffers", list), len(file) - payload),
        ),
        payload,
    )


def _checked(found: dict[str, Any], field: str, kind: type) -> Any:
    if not isinstance(found.get(field), kind):
        raise DamagedSnapshotError(f"{field} of its header is no {kind.__name__}")
    return found[field]


def _buffers(entries: list[Any], payload_size: int) -> list[Buffer]:
    """Check that the buffers are within the file and do not overlap.

    Then all tensors together are no larger than the file.
    """
    if len(entries) > MAX_BUFFERS:
        raise DamagedSnapshotError(f"it has {len(entries)} tensors")
    buffers: list[Buffer] = []
    end = 0
    for entry in entries:
        buffer = _buffer(entry)
        if buffer is None or buffer.offset < end or buffer.offset % _ALIGNED_BYTES:
            raise DamagedSnapshotError(f"its buffer {len(buffers)} is not valid: {entry!r:.80}")
        buffers.append(buffer)
        end = _end(buffer)
    if end > payload_size:
        raise DamagedSnapshotError(f"it ends {end - payload_size} bytes too early")
    return buffers


def _buffer(entry: Any) -> Buffer | None:
    match entry:
        case [str(dtype), list(shape), offset, size] if (
            len(dtype) <= _LONGEST_DTYPE
            and len(shape) <= _MOST_DIMENSIONS
            and all(_is_count(each) for each in (offset, size, *shape))
        ):
            return Buffer(dtype, tuple(shape), offset, size)
    return None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_DIMENSION


def _end(buffer: Buffer) -> int:
    return buffer.offset + buffer.size


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step
