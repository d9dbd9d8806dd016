"""Packs one rank's state into one block of memory, which other ranks receive as it is.

The block is a snapshot file in memory: of a DTensor it has only the part of this rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.devices.marks import wait_for_copies
from ddp_trainer.devices.page_locked import page_locked_like
from ddp_trainer.memory.file_format import Header, decode, encode
from ddp_trainer.memory.restoration import Restoration
from ddp_trainer.memory.state_tree import flatten
from ddp_trainer.memory.volume import Key, SnapshotName

_GROWTH_BYTES = 4096
"""Room for numbers that become longer as text."""
_NAME = SnapshotName(key=Key(0, 0), rank=0, world_size=1, replicated=False)
"""The ranks know whose block it is."""


def pack(state: Any, memory: Tensor | None = None) -> Tensor:
    """Return a state as bytes, in `memory` if that has room.

    Raises:
        TypeError: something in it is neither a tensor nor plain data; the message says where.
        LostDeviceError: the device hangs.
    """
    flat = flatten(state)
    header = Header(job_uid="", name=_NAME, time=0.0, tree=flat.tree, buffers=flat.buffers)
    begin = encode(header)
    if flat.gpus and memory is not None and not memory.is_pinned():  # came from another rank
        memory = None
    memory = resized(memory, len(begin) + header.payload_size, page_locked=bool(flat.gpus))
    flat.write(begin, memory)
    wait_for_copies(flat.gpus, what="copy this rank's part of the model")
    return memory


def unpack(memory: Tensor, examples: Iterable[Tensor]) -> Any:
    """Return a copy of a packed state; its DTensors are distributed as those in `examples`."""
    file = memory.numpy().data
    header, payload = decode(file)
    return Restoration(header, file[payload:], examples).state()


def resized(memory: Tensor | None, size: int, *, page_locked: bool = False) -> Tensor:
    """Return `size` bytes, in this memory if it has room.

    `page_locked`: new memory is, so that a GPU copies to it at full speed.
    """
    if memory is None or memory.untyped_storage().nbytes() < size:
        memory = torch.empty(
            size + _GROWTH_BYTES, dtype=torch.uint8, device="meta" if page_locked else "cpu"
        )
        if page_locked:
            [memory] = page_locked_like([memory])
    return torch.as_strided(memory, (size,), (1,), 0)
