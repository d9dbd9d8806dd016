"""What a rank can do with the others: the collectives of one formed process group.

The training loop sees ranks, a device and a few collectives, never a backend or a store. Control
messages (stop flags, states, scores) always travel over gloo on the CPU: with NCCL they would have
to wait for the GPU, and NCCL notices a dead peer much later than gloo's broken connection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.compression import Hook
from ddp_trainer.training_options import DDPOptions
from ddp_trainer.waits import Waits


class Group:
    """One formed group, as seen by one of its ranks; of no more use once it broke."""

    def __init__(self, *, rank: int, size: int, device: torch.device, waits: Waits) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._waits = waits

    def wrap(
        self,
        model: nn.Module,
        options: DDPOptions,
        hook: Hook | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> DistributedDataParallel:
        """Average the gradients of a model on this rank's device over the ranks of this group.

        `hook`: does it in another way than by a sum. `one_at_a_time`: on a CPU a bucket begins only
        when the one before is done. Buffers are left to the caller.
        """
        # None of this is left to DDP, which would wait in gloo.
        for tensor in (*model.parameters(), *model.buffers()):
            self.share(tensor.detach())
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            init_sync=False,
        )
        wrapped.broadcast_buffers = False
        if self.device.type == "cpu":
            # DDP takes annotations that are text, as here, for wrong ones; a lambda has none.
            wrapped.register_comm_hook(
                None, lambda _, bucket: self._guarded(hook, bucket, wait=one_at_a_time)
            )
        elif hook is not None:  # NCCL's work can be aborted, and needs no guard
            wrapped.register_comm_hook(None, lambda _, bucket: hook(None, bucket))
        return wrapped

    def _guarded(self, hook: Hook | None, bucket: GradBucket, *, wait: bool) -> Future[Tensor]:
        if hook is not None:
            future = hook(None, bucket)
            if wait:
                self._waits.wait(future)
            return self._waits.guard(future, future.value)
        gradients = bucket.buffer().div_(self.size)
        work: dist.Work = dist.all_reduce(gradients, async_op=True)
        return self._waits.guard(work.get_future(), lambda: gradients)

    def share(self, *tensors: Tensor, source: int = 0) -> None:
        """Fill tensors, on this rank's device or the CPU, with rank `source`'s; in place.

        Those of one type travel together.
        """
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for some in alike.values():
            if len(some) == 1 and some[0].is_contiguous():
                self._share(some[0], source)
                continue
            together = torch.cat([tensor.reshape(-1) for tensor in some])
            self._share(together, source)
            parts = torch.split(together, [tensor.numel() for tensor in some])
            for tensor, part in zip(some, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def _share(self, tensor: Tensor, source: int) -> None:
        self._wait(dist.broadcast(tensor, src=source, async_op=True), tensor.device)

    def average(self, tensor: Tensor) -> None:
        """Replace a tensor, on this rank's device or the CPU, by its mean over all ranks."""
        self._wait(dist.all_reduce(tensor.div_(self.size), async_op=True), tensor.device)

    def _wait(self, work: dist.Work, device: torch.device) -> None:
        if device.type == "cpu":
            self._waits.wait(work)
        else:  # NCCL's work can be aborted
            work.wait()

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        self._waits.wait(dist.all_reduce(total, async_op=True))
        return [float(value) for value in total]

    def start_sum(self, value: Tensor) -> Callable[[], None]:
        """Begin to sum a CPU tensor over all ranks, in place; returns what waits for its end."""
        work: dist.Work = dist.all_reduce(value, async_op=True)
        return lambda: self._waits.wait(work)

    def broadcast(self, data: bytes | None, *, source: int = 0) -> bytes:
        """The `data` of rank `source`, on all ranks."""
        size = torch.tensor([len(data or b"")])
        self._waits.wait(dist.broadcast(size, src=source, async_op=True))
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == source and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            self._waits.wait(dist.broadcast(buffer, src=source, async_op=True))
        return bytes(buffer.numpy().data)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, by rank, on all ranks."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._waits.wait(dist.all_gather(sizes, torch.tensor([len(data)]), async_op=True))
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._waits.wait(dist.all_gather(parts, padded, async_op=True))
        return [
            bytes(part.numpy().data)[: int(size)] for part, size in zip(parts, sizes, strict=True)
        ]

    def gather_numbers(self, *values: float) -> list[list[float]]:
        """Every rank's values, by rank, on all ranks: as many on each of them."""
        mine = torch.tensor(values, dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._waits.wait(dist.all_gather(parts, mine, async_op=True))
        return [part.tolist() for part in parts]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)
