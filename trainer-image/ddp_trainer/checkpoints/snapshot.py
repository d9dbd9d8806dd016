"""A copy of a run's state in this machine's memory, so that training continues while it is saved.

The next copy reuses the memory, because allocating it takes longer than copying.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ddp_trainer.devices.marks import wait_for_copies
from ddp_trainer.devices.page_locked import page_locked_like
from ddp_trainer.system.buffers import tensors


class Snapshot:
    """One copy of a state; in page-locked memory if the state is on a GPU, which is faster."""

    def __init__(self) -> None:
        self._buffers: list[tuple[object, Tensor]] = []
        """Buffers, each with the layout of tensors that fit."""

    def take(self, state: Any) -> Any:
        """Return a copy of a state; it overwrites the previous copy.

        Tensors that share memory, such as tied weights, also share it in the copy.

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
        devices = {tensor.device for tensor in originals.values()}
        wait_for_copies(devices, what="copy the run's state")
        copies = {identity: buffers[memory] for identity, memory in memories.items()}
        return copy.deepcopy(state, dict[int, Any](copies))

    def _make_fit(self, originals: list[Tensor]) -> None:
        """Provide a buffer for each tensor: the existing one if it fits, otherwise a new one."""
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
        # In one thread: memory is the bottleneck. torch's threads wait for each other at every
        # tensor, which takes many times as long on shared cores.
        np.copyto(_bytes(buffer), _bytes(original))
    else:
        # From a GPU, all copies are queued before the first wait.
        buffer.copy_(original.detach(), non_blocking=True)


def _layout(tensor: Tensor) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous tensor as bytes, also for types that numpy lacks."""
    array: npt.NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def memory_of(tensor: Tensor) -> object:
    """Return a key that is equal for tensors with the same view of the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return *place, tensor.dtype, tensor.device, tensor.shape, tensor.stride()
