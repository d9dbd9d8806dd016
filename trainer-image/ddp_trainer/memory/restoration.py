"""Puts a training's state together from a snapshot, in new tensors or in those of the training."""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.memory.file_format import Buffer, DamagedSnapshotError, Header
from ddp_trainer.memory.state_tree import (
    DEEPEST,
    KEYS,
    PLAIN,
    Layout,
    Path,
    is_dtensor,
    texts,
    where,
)

_ABSENT: Any = object()
"""A part of the state for which `into` has no tensors."""
LEFT_OUT: Any = object()
"""In `into`: a part of the state that is not loaded."""
_ARRAY = re.compile(r"[<>|][biufc]\d{1,2}", re.ASCII)


class MismatchError(ValueError):
    """The snapshot does not fit the state into which it should be loaded."""


class Restoration:
    """Puts the state of one snapshot together."""

    def __init__(
        self, header: Header, payload: memoryview, examples: Iterable[Tensor] = ()
    ) -> None:
        """`payload`: everything behind the header; it must be writable, for torch's sake.

        `examples`: DTensors; new ones have their mesh and placements.
        """
        self._header = header
        self._payload = payload
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Destination and source."""
        self._made: dict[tuple[str, int], Any] = {}
        """New tensors, arrays and bytes, by the index of their buffer."""
        self._examples: dict[Layout, Any] = {Layout.of(each): each for each in examples}
        """A DTensor with each layout, also from `into`."""
        self._has_tensors: dict[int, bool] = {}

    def state(self, into: object = _ABSENT) -> Any:
        """Return the state; its tensors are those of `into`, which receive the values, or new ones.

        Parts of `into` without tensors, such as the state of a new optimizer, are replaced. Those
        that are `LEFT_OUT` become None. Nothing is changed if there is an error.

        Raises:
            MismatchError: `into` has other tensors or containers.
            DamagedSnapshotError: the snapshot is not valid.
        """
        self._look_for_tensors(into)
        state = self._value(self._header.tree, into, ())
        with torch.no_grad():
            for destination, source in self._copies:
                destination.copy_(source)
        return state

    def _look_for_tensors(self, into: object) -> bool:
        """Note the parts with tensors or with something left out: their structure matters."""
        if is_dtensor(into):
            self._examples[Layout.of(into)] = into
        parts: Iterable[object] = into if isinstance(into, list | tuple) else ()
        if isinstance(into, dict):
            parts = into.values()
        found = [self._look_for_tensors(part) for part in parts]
        self._has_tensors[id(into)] = isinstance(into, Tensor) or into is LEFT_OUT or any(found)
        return self._has_tensors[id(into)]

    def _value(self, node: Any, into: Any, path: Path) -> Any:
        if len(path) > DEEPEST:
            raise DamagedSnapshotError("its state is nested too deeply")
        if into is LEFT_OUT:
            return None
        if into is not _ABSENT and not self._has_tensors[id(into)]:
            into = _ABSENT
        match node:
            case ["tensor", int(index)]:
                return self._tensor(index, into, path)
            case ["dtensor", int(index), layout, list(shape), list(stride)]:
                return self._dtensor(index, _layout(layout), (shape, stride), into, path)
            case ["bytes" | "array" | "scalar" as kind, int(index)]:
                _expect_no_tensors(into, path)
                if (kind, index) not in self._made:
                    self._made[kind, index] = self._data(kind, self._buffer(index))
                return self._made[kind, index]
            case dict() | [str(), *_]:
                return self._container(node, into, path)
        _expect_no_tensors(into, path)
        if type(node) in PLAIN:
            return node
        raise _invalid(node, path)

    def _container(self, node: Any, into: Any, path: Path) -> Any:
        match node:
            case dict():
                return self._mapping(node, into, path)
            case ["dict", *pairs]:
                return self._mapping(_dict(pairs), into, path)
            case ["Counter", *pairs]:
                return Counter(self._mapping(_dict(pairs), into, path))
            case ["OrderedDict", metadata, *pairs]:
                ordered = OrderedDict(self._mapping(_dict(pairs), into, path))
                if metadata is not None:
                    versions = self._value(metadata, _ABSENT, (*path, "_metadata"))
                    ordered._metadata = versions  # type: ignore[attr-defined]
                return ordered
            case ["list", *items]:
                return self._items(items, into, path)
            case ["tuple", *items]:
                return tuple(self._items(items, into, path))
        raise _invalid(node, path)

    def _mapping(self, nodes: dict[Any, Any], into: Any, path: Path) -> dict[Any, Any]:
        if into is not _ABSENT:
            if not isinstance(into, dict):
                raise MismatchError(f"{where(path)} is a dict in the snapshot, but not in `into`")
            if different := [key for key in (*nodes, *into) if (key in nodes) != (key in into)]:
                holder = "the snapshot" if different[0] in nodes else "`into`"
                raise MismatchError(f"only {holder} has {where((*path, different[0]))}")
        return {
            key: self._value(node, into[key] if into is not _ABSENT else _ABSENT, (*path, key))
            for key, node in nodes.items()
        }

    def _items(self, nodes: list[Any], into: Any, path: Path) -> list[Any]:
        parts: Any = [_ABSENT] * len(nodes) if into is _ABSENT else into
        if not isinstance(parts, list | tuple) or len(parts) != len(nodes):
            raise MismatchError(
                f"{where(path)} is a sequence of {len(nodes)} in the snapshot, but not in `into`"
            )
        return [
            self._value(node, part, (*path, at))
            for at, (node, part) in enumerate(zip(nodes, parts, strict=True))
        ]

    def _tensor(self, index: int, into: Any, path: Path) -> Tensor:
        source = self._source(index)
        if into is _ABSENT:
            return self._new(index, source, torch.device("cpu"))
        if not isinstance(into, Tensor) or is_dtensor(into):
            found = type(into).__name__
            raise MismatchError(f"{where(path)} is a tensor in the snapshot, and {found} in `into`")
        self._copy(source, into, path)
        return into

    def _dtensor(
        self, index: int, layout: Layout, sizes: tuple[list[int], list[int]], into: Any, path: Path
    ) -> Tensor:
        source, (shape, stride) = self._source(index), sizes
        if into is _ABSENT:
            if layout not in self._examples:
                raise MismatchError(
                    f"{where(path)} is a DTensor ({layout}), but `into` has no DTensor of that "
                    "kind: call load(into=state) in a group with the same mesh"
                )
            example = self._examples[layout]
            local = self._new(index, source, example.to_local().device)
            made: Tensor = type(example).from_local(
                local,
                example.device_mesh,
                example.placements,
                shape=torch.Size(shape),
                stride=tuple(stride),
            )
            return made
        found = str(Layout.of(into)) if is_dtensor(into) else type(into).__name__
        if found != str(layout) or list(into.shape) != shape:
            raise MismatchError(
                f"{where(path)} is a DTensor {shape} ({layout}) in the snapshot, and {found} "
                f"{list(getattr(into, 'shape', ()))} in `into`"
            )
        self._copy(source, into.detach().to_local(), path)
        return into  # type: ignore[no-any-return]

    def _new(self, index: int, source: Tensor, device: torch.device) -> Tensor:
        if ("tensor", index) not in self._made:
            self._made["tensor", index] = torch.empty_like(source, device=device)
            self._copies.append((self._made["tensor", index], source))
        return self._made["tensor", index]  # type: ignore[no-any-return]

    def _copy(self, source: Tensor, destination: Tensor, path: Path) -> None:
        if (destination.shape, destination.dtype) != (source.shape, source.dtype):
            raise MismatchError(
                f"{where(path)} is {source.dtype} {list(source.shape)} in the snapshot, and "
                f"{destination.dtype} {list(destination.shape)} in `into`"
            )
        self._copies.append((destination, source))

    def _source(self, index: int) -> Tensor:
        buffer = self._buffer(index)
        dtype = getattr(torch, buffer.dtype, None)
        if not isinstance(dtype, torch.dtype) or not _fits(buffer, dtype.itemsize):
            raise _damaged(buffer)
        try:
            if buffer.size == 0:
                return torch.empty(buffer.shape, dtype=dtype)
            data = torch.frombuffer(
                self._payload, dtype=torch.uint8, count=buffer.size, offset=buffer.offset
            )
            return data.view(dtype).view(buffer.shape)
        except RuntimeError as error:
            raise _damaged(buffer) from error

    def _data(self, kind: str, buffer: Buffer) -> Any:
        data = bytes(self._payload[buffer.offset : buffer.offset + buffer.size])
        if kind == "bytes":
            return data
        import numpy  # noqa: PLC0415 - images with torch may lack it

        try:
            dtype = numpy.dtype(buffer.dtype) if _ARRAY.fullmatch(buffer.dtype) else None
            if dtype is None or not _fits(buffer, dtype.itemsize):
                raise _damaged(buffer)
            array = numpy.frombuffer(data, dtype).reshape(buffer.shape).copy()
        except (TypeError, OverflowError) as error:
            raise _damaged(buffer) from error
        return array if kind == "array" else array[()]

    def _buffer(self, index: int) -> Buffer:
        if not 0 <= index < len(self._header.buffers):
            raise DamagedSnapshotError(f"it has no buffer {index}")
        return self._header.buffers[index]


def _expect_no_tensors(into: object, path: Path) -> None:
    if into is not _ABSENT:
        raise MismatchError(f"{where(path)} has tensors in `into`, but none in the snapshot")


def _invalid(node: object, path: Path) -> DamagedSnapshotError:
    return DamagedSnapshotError(f"{where(path)} is not valid: {node!r:.80}")


def _fits(buffer: Buffer, item_size: int) -> bool:
    return math.prod(buffer.shape) * item_size == buffer.size


def _damaged(buffer: Buffer) -> DamagedSnapshotError:
    return DamagedSnapshotError(f"a buffer of it is not valid: {buffer!r:.120}")


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in KEYS:
            raise DamagedSnapshotError(f"a dict of its state is not valid: {pair!r:.80}")
    return dict(pairs)


def _layout(plain: Any) -> Layout:
    match plain:
        case [list(mesh), list(names), list(coordinate), list(placements)]:
            return Layout(*map(texts, (mesh, names, coordinate, placements)))
    raise DamagedSnapshotError(f"a layout of its state is not valid: {plain!r:.80}")
