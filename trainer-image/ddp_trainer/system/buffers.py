"""Memory for states of any size, which no thread has to wait for.

What Python copies into an object of its own, such as bytes, it copies while it holds its lock: for
seconds a gigabyte, in which no other thread of the process runs, and a rank that is busy looks like
one that is frozen. So a state lives in memory of torch's, is copied by numpy, which lets go of the
lock, and is handed on as a view.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


Place = tuple[object, ...]
"""Keys and indices that lead to a tensor."""


def allocate(size: int) -> memoryview:
    """Memory for so many bytes, whatever is in it; the kernel gives it when it is first used."""
    return torch.empty(size, dtype=torch.uint8).numpy().data


def load(data: bytes | memoryview) -> Any:
    """What torch.save was given, on the CPU; raises what torch.load does."""
    # weights_only: a checkpoint is data and must not be able to run code.
    return torch.load(Reader(data), map_location="cpu", weights_only=True)  # type: ignore[arg-type]


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors in nested dictionaries, lists and tuples."""
    for _, tensor in tensors_by_place(state):
        yield tensor


def tensors_by_place(state: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """The same, each with where it is."""
    if isinstance(state, Tensor):
        yield place, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from tensors_by_place(value, (*place, key))
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from tensors_by_place(value, (*place, index))


def size_of(state: Any) -> int:
    """Bytes of all tensors, about what a file of the state takes."""
    return sum(tensor.nbytes for tensor in tensors(state))


class Reader(io.RawIOBase):
    """A file to read that is memory."""

    def __init__(self, memory: bytes | memoryview) -> None:
        self._memory = memoryview(memory)
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Bytes before the next one that is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as in any file."""
        self._at = offset + {0: 0, 1: self._at, 2: len(self._memory)}[whence]
        return self._at

    def readinto(self, target: WriteableBuffer) -> int:
        """Fill `target` as far as there is something."""
        view = memoryview(target).cast("B")
        part = self._memory[self._at : self._at + len(view)]
        _copy(part, view)
        self._at += len(part)
        return len(part)


def _copy(source: bytes | memoryview, target: memoryview) -> None:
    """Copy all of `source` to the beginning of `target`."""
    array = np.frombuffer(source, np.uint8)
    np.copyto(np.frombuffer(target, np.uint8)[: len(array)], array)
