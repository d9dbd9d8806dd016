"""Takes a training's state apart into plain data and buffers.

The plain data become JSON. A dict with string keys is a JSON object; every other container and
every tensor is a list that begins with its kind, such as `["tuple", 1, 2]` or `["tensor", 0]`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ddp_trainer.memory.file_format import Buffer, place

DEEPEST = 64
_LARGEST_BITS = 4096
"""Bits of the largest int."""
_NUMPY_KINDS = "biufc"
KEYS = (str, int)
_TENSORS = (Tensor, torch.nn.Parameter)
PLAIN = (type(None), bool, int, float, str)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Flat:
    """A state that has been taken apart."""

    tree: Any
    sources: Sequence[Tensor | memoryview]
    """The content of each buffer."""
    buffers: Sequence[Buffer]

    @cached_property
    def gpus(self) -> set[torch.device]:
        """The GPUs that have some of its content."""
        return {each.device for each in self.sources if isinstance(each, Tensor) and each.is_cuda}

    def write(self, begin: bytes, memory: Tensor) -> None:
        """Copy the bytes before the payload, and all buffers, to memory.

        Copies from a GPU are asynchronous if the memory is page-locked.
        """
        memory[: len(begin)] = torch.frombuffer(bytearray(begin), dtype=torch.uint8)
        for buffer, source in zip(self.buffers, self.sources, strict=True):
            if buffer.size == 0:
                continue
            at = len(begin) + buffer.offset
            target = memory[at : at + buffer.size]
            if isinstance(source, Tensor):
                view = target.view(source.dtype).view(source.shape)
                view.copy_(source, non_blocking=source.is_cuda)
            else:
                target.copy_(torch.frombuffer(bytearray(source), dtype=torch.uint8))


def flatten(state: object) -> Flat:
    """Take a state apart; tensors are not copied.

    A tensor that occurs twice, as tied weights do, has one buffer.

    Raises:
        TypeError: something in it cannot be saved; the message says where and what to do.
    """
    parts = _Parts()
    with torch.no_grad():  # the local part of a DTensor is at hand then
        tree = parts.node(state, ())
    return Flat(tree, parts.sources, place(parts.kinds))


class _Parts:
    def __init__(self) -> None:
        self.sources: list[Tensor | memoryview] = []
        self.kinds: list[tuple[str, tuple[int, ...], int]] = []
        self._known: dict[object, int] = {}
        self._layouts: dict[object, list[list[str]]] = {}

    def node(self, value: Any, path: Path) -> Any:
        if len(path) > DEEPEST:
            raise TypeError(f"{where(path)}: the state is nested too deeply or contains itself")
        kind = type(value)
        if kind is int and value.bit_length() > _LARGEST_BITS:
            raise TypeError(f"{where(path)}: the number is too large; save it as bytes")
        if kind in PLAIN:
            return value
        if kind in (list, tuple):
            items = [self.node(item, (*path, at)) for at, item in enumerate(value)]
            return [kind.__name__, *items]
        if kind in (dict, OrderedDict, Counter):
            return self._mapping(value, path)
        if kind is bytes:
            return ["bytes", self._add(memoryview(value), "bytes", (len(value),))]
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        numpy = sys.modules.get("numpy")
        if numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic)):
            if value.dtype.kind in _NUMPY_KINDS:
                data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
                index = self._add(memoryview(data), value.dtype.str, value.shape)
                return ["array" if kind is numpy.ndarray else "scalar", index]
            raise TypeError(f"{where(path)}: an array of {value.dtype} cannot be saved")
        raise TypeError(
            f"{where(path)} is of type {kind.__name__}, which a snapshot cannot contain: convert "
            "it to a dict, list, number, string, bytes or tensor"
        )

    def _mapping(self, value: Any, path: Path) -> Any:
        for key in value:
            if type(key) not in KEYS:
                raise TypeError(f"{where(path)}: the key {key!r:.40} must be a string or an int")
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self.node(item, (*path, key)) for key, item in value.items()}
        pairs = [[key, self.node(item, (*path, key))] for key, item in value.items()]
        if type(value) is OrderedDict:
            # A module's state_dict has the versions of its parts in this attribute.
            metadata = getattr(value, "_metadata", None)
            return ["OrderedDict", self.node(metadata, (*path, "_metadata")), *pairs]
        return [type(value).__name__, *pairs]

    def _tensor(self, value: Tensor, path: Path) -> Any:
        if is_dtensor(value):
            node = self._tensor(value.to_local(), path)
            kind = value.device_mesh, tuple(value.placements)
            if kind not in self._layouts:  # thousands have the same one
                self._layouts[kind] = Layout.of(value).plain()
            layout = self._layouts[kind]
            return ["dtensor", *node[1:], layout, list(value.shape), list(value.stride())]
        if type(value) not in _TENSORS or value.is_quantized:
            raise TypeError(
                f"{where(path)} is a tensor of type {type(value).__name__} or quantized: save its "
                "plain tensors instead"
            )
        if value.layout is not torch.strided or value.is_meta:
            raise TypeError(f"{where(path)} is sparse or has no data: save a dense tensor")
        if value.requires_grad:
            value = value.detach()
        value = value.resolve_neg()  # torch has negative views that have no bytes of their own
        identity = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        same = (*identity, value.is_conj(), value.is_neg()) if value.numel() else None
        dtype = str(value.dtype).removeprefix("torch.")
        return ["tensor", self._add(value, dtype, tuple(value.shape), same)]

    def _add(
        self,
        source: Tensor | memoryview,
        dtype: str,
        shape: tuple[int, ...],
        same: object = None,
    ) -> int:
        """Return the index of the buffer; `same` equals that of the same tensor."""
        index = len(self.sources)
        if same is not None and self._known.setdefault(same, index) != index:
            return self._known[same]
        self.sources.append(source)
        self.kinds.append((dtype, shape, source.nbytes))
        return index


@dataclass(frozen=True)
class Layout:
    """How a DTensor is distributed, and which part of it this rank has."""

    mesh: tuple[str, ...]
    """Its shape."""
    names: tuple[str, ...]
    """Of the mesh's dimensions."""
    coordinate: tuple[str, ...]
    """Of this rank; `*` in dimensions over which the tensor is replicated."""
    placements: tuple[str, ...]

    @classmethod
    def of(cls, tensor: Any) -> Layout:
        """Return the layout of a DTensor."""
        mesh, placements = tensor.device_mesh, tensor.placements
        places = zip(mesh.get_coordinate() or (), placements, strict=False)
        return cls(
            mesh=texts(mesh.shape),
            names=texts(mesh.mesh_dim_names or ()),
            coordinate=texts("*" if how.is_replicate() else place for place, how in places),
            placements=texts(placements),
        )

    def plain(self) -> list[list[str]]:
        """Return it as JSON data."""
        return [list(self.mesh), list(self.names), list(self.coordinate), list(self.placements)]

    def __str__(self) -> str:
        mesh, names, coordinate, placements = map(", ".join, self.plain())
        return f"[{placements}] at ({coordinate}) of mesh ({mesh}), dimensions [{names}]"


def where(path: Path) -> str:
    """Return a part of the state as an expression, such as `state["model"]["weight"]`."""
    return "state" + "".join(f"[{json.dumps(key)}]" for key in path)


def texts(values: Iterable[object]) -> tuple[str, ...]:
    """Return the text of each value."""
    return tuple(map(str, values))


def is_dtensor(value: object) -> TypeGuard[Any]:
    """Return whether it is a DTensor; if their module is not loaded, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return isinstance(value, getattr(module, "DTensor", ()))  # torch 2.4 has none there
