"""Memory buffers for states of any size that do not block other threads.

Copying into a Python object such as bytes holds Python's lock, for seconds per gigabyte. Meanwhile
no other thread of the process runs, and a busy rank looks frozen. So a state is kept in torch's
memory, copied by numpy, which releases the lock, and passed on as a view.
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
"""Keys and indices on the path to a tensor."""


def allocate(size: int) -> memoryview:
    """Return uninitialized memory of `size` bytes; the kernel provides it on first use."""
    return torch.empty(size, dtype=torch.uint8).numpy().data


def load(data: bytes | memoryview) -> Any:
    """Load data of torch.save onto the CPU; raises the errors of torch.load."""
    # weights_only: a checkpoint is data and must not be able to run code.
    return torch.load(Reader(data), map_location="cpu", weights_only=True)  # type: ignore[arg-type]


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested dictionaries, lists and tuples."""
    for _, tensor in tensors_by_place(state):
        yield tensor


def tensors_by_place(state: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """Yield all tensors, each with its path."""
    if isinstance(state, Tensor):
        yield place, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from tensors_by_place(value, (*place, key))
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from tensors_by_place(value, (*place, index))


def size_of(state: Any) -> int:
    """Return the bytes of all tensors, about the size of a file of the state."""
    return sum(tensor.nbytes for tensor in tensors(state))


class Reader(io.RawIOBase):
    """A read-only file in memory."""

    def __init__(self, memory: bytes | memoryview) -> None:
        self._memory = memoryview(memory)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as in any file."""
        self._at = offset + {0: 0, 1: self._at, 2: len(self._memory)}[whence]
        return self._at

    def readinto(self, target: WriteableBuffer) -> int:
        """Read into `target`, and return the number of bytes."""
        view = memoryview(target).cast("B")
        part = self._memory[self._at : self._at + len(view)]
        _copy(part, view)
        self._at += len(part)
        return len(part)


def _copy(source: bytes | memoryview, target: memoryview) -> None:
    """Copy all of `source` to the beginning of `target`."""
    array = np.frombuffer(source, np.uint8)
    np.copyto(np.frombuffer(target, np.uint8)[: len(array)], array)
