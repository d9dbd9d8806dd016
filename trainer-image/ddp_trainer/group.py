"""What a rank can do with the others: the collectives of one formed process group.

The training loop sees ranks, a device and a few collectives, never a backend or a store. Control
messages (stop flags, states, scores) always travel over gloo on the CPU: with NCCL they would have
to wait for the GPU, and NCCL notices a dead peer much later than gloo's broken connection.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.training_options import DDPOptions


class Group:
    """One formed group, as seen by one of its ranks; of no more use once it broke."""

    def __init__(self, *, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.device = device

    def wrap(self, model: nn.Module, options: DDPOptions) -> DistributedDataParallel:
        """Average the gradients of a model on this rank's device over the ranks of this group."""
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            broadcast_buffers=options.broadcast_buffers,
        )

    def share(self, tensor: Tensor, *, source: int = 0) -> None:
        """Fill a tensor, on this rank's device or the CPU, with rank `source`'s; in place."""
        dist.broadcast(tensor, src=source)

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def start_sum(self, value: Tensor) -> dist.Work:
        """Begin to sum a CPU tensor over all ranks, in place; its `wait` ends it."""
        work: dist.Work = dist.all_reduce(value, async_op=True)
        return work

    def broadcast(self, data: bytes | None, *, source: int = 0) -> bytes:
        """The `data` of rank `source`, on all ranks."""
        size = torch.tensor([len(data or b"")])
        dist.broadcast(size, src=source)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == source and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, src=source)
        return bytes(buffer.numpy().data)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, by rank, on all ranks."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]))
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [
            bytes(part.numpy().data)[: int(size)] for part, size in zip(parts, sizes, strict=True)
        ]

    def gather_numbers(self, *values: float) -> list[list[float]]:
        """Every rank's values, by rank, on all ranks: as many on each of them."""
        mine = torch.tensor(values, dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine)
        return [part.tolist() for part in parts]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)
