"""Packs one rank's state into one block of memory, which other ranks receive as it is.

Tensors follow each other, of a DTensor only the part of this rank. Everything else is pickled
before them, and is read back without running code.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

_ALIGNMENT = 64
"""A multiple of the size of every number, so that memory can be viewed as any of them."""
_HEADER_BYTES = 64
"""Of the lengths in bytes of the two pickled parts."""
_GROWTH_BYTES = 4096
"""Room for numbers that become longer when pickled."""
_PLAIN = {
    (kind.__module__, kind.__name__): kind
    for kind in (OrderedDict, Counter, set, frozenset, complex, bytearray)
}
_Layout = tuple[torch.dtype, tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...], int] | None]
"""Type and shape of a tensor in memory; of a DTensor also its shape, strides and sharded
dimension."""


def pack(state: Any, memory: Tensor | None = None) -> Tensor:
    """Return a state as bytes, in `memory` if that has room."""
    tensors: list[Tensor] = []
    body = _dump(state, tensors)
    layouts = [_layout(tensor) for tensor in tensors]
    table = dump(layouts)
    places, size = _places(layouts, _HEADER_BYTES + len(table) + len(body))
    memory = resized(memory, size)
    memory[:_HEADER_BYTES].view(torch.int64)[:2] = torch.tensor([len(table), len(body)])
    begin = _HEADER_BYTES
    for text in (table, body):
        memory[begin : begin + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        begin += len(text)
    with torch.no_grad():
        for tensor, view in zip(tensors, _views(memory, layouts, places), strict=True):
            view.copy_(_local(tensor))
    return memory


def unpack(memory: Tensor, mesh: DeviceMesh) -> Any:
    """Return a copy of a packed state, whose DTensors are on this mesh."""
    lengths = memory[:_HEADER_BYTES].view(torch.int64)[:2].tolist()
    begin = _HEADER_BYTES
    texts = []
    for length in lengths:
        texts.append(bytes(memory[begin : begin + length].numpy().data))
        begin += length
    layouts: list[_Layout] = load(texts[0])
    places, _ = _places(layouts, begin)
    tensors = [
        _whole(view.clone(), layout, mesh)
        for view, layout in zip(_views(memory, layouts, places), layouts, strict=True)
    ]
    return _load(texts[1], tensors)


def dump(state: Any) -> bytes:
    """Return plain data without tensors as bytes."""
    return _dump(state, [])


def load(text: bytes) -> Any:
    """Return the data of `dump`."""
    return _load(text, [])


def resized(memory: Tensor | None, size: int) -> Tensor:
    """Return `size` bytes, in this memory if it has room."""
    if memory is None or memory.untyped_storage().nbytes() < size:
        memory = torch.empty(size + _GROWTH_BYTES, dtype=torch.uint8)
    return torch.as_strided(memory, (size,), (1,), 0)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, found: Any) -> int | None:
        """Return the number of a tensor, which is stored elsewhere."""
        if not isinstance(found, Tensor):
            return None
        self._tensors.append(found)
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        """Return a tensor by its number."""
        return self._tensors[number]

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of plain data; refuse everything else.

        Raises:
            UnpicklingError: it could run code.
        """
        found = _PLAIN.get((module, name))
        if found is None and module == "torch":
            found = getattr(torch, name, None)
            if found not in (torch.Size, torch.device) and not isinstance(found, torch.dtype):
                found = None
        if found is None:
            raise pickle.UnpicklingError(
                f"a state contains {module}.{name}, which is no plain data"
            )
        return found


def _dump(state: Any, tensors: list[Tensor]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, tensors).dump(state)
    return file.getvalue()


def _load(text: bytes, tensors: Sequence[Tensor]) -> Any:
    return _Unpickler(io.BytesIO(text), tensors).load()


def _layout(tensor: Tensor) -> _Layout:
    sharded = None
    if isinstance(tensor, DTensor):
        [placement] = tensor.placements
        assert isinstance(placement, Shard)
        sharded = tuple(tensor.shape), tensor.stride(), placement.dim
    return tensor.dtype, tuple(_local(tensor).shape), sharded


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def _whole(local: Tensor, layout: _Layout, mesh: DeviceMesh) -> Tensor:
    if layout[2] is None:
        return local
    shape, stride, dim = layout[2]
    return DTensor.from_local(
        local, mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=stride
    )


def _places(layouts: Sequence[_Layout], begin: int) -> tuple[list[int], int]:
    """Return where each tensor begins, and where the last one ends."""
    places = []
    for dtype, shape, _ in layouts:
        begin = -(-begin // _ALIGNMENT) * _ALIGNMENT
        places.append(begin)
        begin += torch.Size(shape).numel() * dtype.itemsize
    return places, begin


def _views(memory: Tensor, layouts: Sequence[_Layout], places: Sequence[int]) -> Iterator[Tensor]:
    for (dtype, shape, _), begin in zip(layouts, places, strict=True):
        size = torch.Size(shape).numel() * dtype.itemsize
        yield memory[begin : begin + size].view(dtype).view(shape)
