"""States of trainings, and the path of one through a snapshot file's format and back."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from ddp_trainer.memory.file_format import Header, decode, encode
from ddp_trainer.memory.restoration import Restoration
from ddp_trainer.memory.state_tree import flatten
from ddp_trainer.memory.volume import Key, SnapshotName
from hypothesis import strategies as st
from torch import Tensor

NAME = SnapshotName(key=Key(1, 7), rank=0, world_size=2, replicated=False)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.int64,
    torch.bool,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if count else torch.empty(0)
    tensor = flat.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    return tensor.mT if draw(st.booleans()) and tensor.ndim > 1 else tensor


def arrays() -> st.SearchStrategy[Any]:
    dtypes = st.sampled_from(["<f4", ">f8", "<i8", "|u1", "|b1", "<c16", "<f2"])
    return st.builds(
        lambda dtype, shape: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
        dtypes,
        st.lists(st.integers(0, 3), max_size=3),
    )


def states() -> st.SearchStrategy[Any]:
    """Return everything that a snapshot may contain."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        tensors(),
        arrays(),
        arrays().map(lambda array: array.dtype.type(array.sum())),
    )
    keys = st.one_of(st.text(), st.integers())
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts),
            st.lists(parts).map(tuple),
            st.dictionaries(keys, parts),
            st.dictionaries(st.text(), parts),
            st.dictionaries(keys, parts).map(OrderedDict),
        ),
        max_leaves=12,
    )


def snapshot_file(state: object, name: SnapshotName = NAME, job_uid: str = "uid") -> bytearray:
    """Return the content of a state's snapshot file, written in the simplest way."""
    flat = flatten(state)
    header = Header(job_uid=job_uid, name=name, time=1.5, tree=flat.tree, buffers=flat.buffers)
    begin = encode(header)
    file = bytearray(len(begin) + header.payload_size)
    file[: len(begin)] = begin
    for buffer, source in zip(flat.buffers, flat.sources, strict=True):
        at = len(begin) + buffer.offset
        if isinstance(source, Tensor):
            flat_source = source.contiguous().reshape(-1)
            file[at : at + buffer.size] = (
                flat_source.view(torch.uint8).cpu().numpy().tobytes() if buffer.size else b""
            )
        else:
            file[at : at + buffer.size] = source
    return file


def restored(file: bytearray, *into: object) -> Any:
    """Return the state in a snapshot file."""
    header, payload = decode(memoryview(file))
    return Restoration(header, memoryview(file)[payload:]).state(*into)
