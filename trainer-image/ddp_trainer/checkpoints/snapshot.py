"""A copy of a run's state in this machine's memory, so that training can go on while it is saved.

The memory is used again for the next copy: getting it from the kernel takes longer than copying.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ddp_trainer.devices.gate import expect
from ddp_trainer.devices.marks import mark
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
        copies: dict[int, Tensor] = {}  # by the identity of the tensor object, as deepcopy wants
        by_memory: dict[object, Tensor] = {}
        buffers: list[tuple[object, Tensor]] = []
        for tensor in tensors(state):
            memory = _memory(tensor)
            if memory not in by_memory:
                buffers.append(self._copy(tensor, number=len(buffers)))
                by_memory[memory] = buffers[-1][1]
            copies[id(tensor)] = by_memory[memory]
        self._buffers = buffers
        for device in {tensor.device for tensor in tensors(state)}:
            if device.type == "cuda":
                expect(mark(device), within_seconds=_COPY_SECONDS, what="copy the run's state")
        return copy.deepcopy(state, dict[int, Any](copies))

    def _copy(self, tensor: Tensor, *, number: int) -> tuple[object, Tensor]:
        layout = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        kept, buffer = self._buffers[number] if number < len(self._buffers) else (None, None)
        if buffer is None or kept != layout:
            on_gpu = tensor.device.type == "cuda"
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=on_gpu, requires_grad=False)
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_complex():
            # In one thread. It is the memory that takes the time, and torch's threads, which wait
            # for each other at every tensor, take many times as long where cores are shared.
            np.copyto(_bytes(buffer), _bytes(tensor))
        else:
            # From a GPU, all copies are under way before one is waited for.
            buffer.copy_(tensor.detach(), non_blocking=True)
        return layout, buffer


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous tensor, whatever numpy knows of its type."""
    array: npt.NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def _memory(tensor: Tensor) -> object:
    if tensor.numel() == 0:
        return id(tensor)
    place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return *place, tensor.dtype, tensor.device, tensor.shape, tensor.stride()
