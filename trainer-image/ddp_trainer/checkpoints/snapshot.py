"""A copy of a run's state in this machine's memory, so that training can go on while it is saved.

The memory is used again for the next copy: getting it from the kernel takes longer than copying.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ddp_trainer.devices.gate import expect
from ddp_trainer.devices.marks import mark
from ddp_trainer.devices.page_locked import page_locked_like
from ddp_trainer.system.buffers import tensors

_COPY_SECONDS = 300.0
"""Many times what the largest memory of a GPU takes over a slow bus."""


class Snapshot:
    """Holds one copy of a state; page-locked where the state is on a GPU, which is faster."""

    def __init__(self) -> None:
        self._buffers: list[tuple[object, Tensor]] = []
        """Each with the layout of the tensors that fit into it."""

    def take(self, state: Any) -> Any:
        """A copy of a state; the one taken before is overwritten.

        Tensors that share their memory, such as tied weights, share it in the copy too.

        Raises:
            LostDeviceError: the device hangs.
        """
        memories: dict[int, object] = {}  # by the identity of the tensor object, as deepcopy wants
        originals: dict[object, Tensor] = {}
        for tensor in tensors(state):
            memory = memories[id(tensor)] = memory_of(tensor)
            originals.setdefault(memory, tensor)
        self._make_fit(list(originals.values()))
        buffers = dict(zip(originals, (buffer for _, buffer in self._buffers), strict=True))
        for memory, original in originals.items():
            _copy(original, buffers[memory])
        for device in {tensor.device for tensor in originals.values()}:
            if device.type == "cuda":
                expect(mark(device), within_seconds=_COPY_SECONDS, what="copy the run's state")
        copies = {identity: buffers[memory] for identity, memory in memories.items()}
        return copy.deepcopy(state, dict[int, Any](copies))

    def _make_fit(self, originals: list[Tensor]) -> None:
        """Have a buffer for each: the one that there is, or else a new one."""
        layouts = [_layout(original) for original in originals]
        known = zip(layouts, self._buffers, strict=False)
        fitting = {
            number: buffer
            for number, (layout, (kept, buffer)) in enumerate(known)
            if kept == layout
        }
        missing = [number for number in range(len(originals)) if number not in fitting]
        made = _buffers_for([originals[number] for number in missing])
        fitting |= dict(zip(missing, made, strict=True))
        self._buffers = [(layout, fitting[number]) for number, layout in enumerate(layouts)]


def _buffers_for(originals: Sequence[Tensor]) -> Iterator[Tensor]:
    on_gpu = [original for original in originals if original.device.type == "cuda"]
    page_locked = page_locked_like(on_gpu)
    for original in originals:
        if original.device.type == "cuda":
            yield next(page_locked)
        else:
            yield torch.empty_like(original, device="cpu", requires_grad=False)


def _copy(original: Tensor, buffer: Tensor) -> None:
    if original.device.type == "cpu" and original.is_contiguous() and not original.is_complex():
        # In one thread. It is the memory that takes the time, and torch's threads, which wait
        # for each other at every tensor, take many times as long where cores are shared.
        np.copyto(_bytes(buffer), _bytes(original))
    else:
        # From a GPU, all copies are under way before one is waited for.
        buffer.copy_(original.detach(), non_blocking=True)


def _layout(tensor: Tensor) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous tensor, whatever numpy knows of its type."""
    array: npt.NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def memory_of(tensor: Tensor) -> object:
    """Return the same for tensors that are the same view of the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return *place, tensor.dtype, tensor.device, tensor.shape, tensor.stride()
