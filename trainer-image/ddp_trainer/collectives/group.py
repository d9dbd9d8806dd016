"""What a rank can do with the others: the collectives of one formed process group.

The training loop sees ranks, a device and a few collectives, never a backend or a store. Control
messages (stop flags, states, scores) always travel over gloo on the CPU: with NCCL they would have
to wait for the GPU, and NCCL notices a dead peer much later than gloo's broken connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.collectives.pending import PendingWork, future_of, value_of
from ddp_trainer.devices.gate import Gate
from ddp_trainer.settings.training import DDPOptions

_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_Average = Callable[[Any, GradBucket], Future[Any]]
_COMPRESSED: Mapping[str, _Average] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}

_MOST_RANKS = 1 << 20
"""Leaves 43 bits for a value that is compared: millionths of months, if it is in seconds."""


class Group:
    """One formed group, as seen by one of its ranks; of no more use once it broke."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        device: torch.device,
        pending: PendingWork,
        gate: Gate,
        queues: bool = False,
        world: dist.ProcessGroup | None = None,
        control: dist.ProcessGroup | None = None,
        form_smaller: Callable[[tuple[int, ...], str], dist.ProcessGroup] | None = None,
        wait_for_all_to_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`queues`: what the device is told, it does later, collectives included.

        `world`: torch's group of all ranks; None: its default group, as it is now. `control`: what
        takes control messages along; None: `world`. `form_smaller` forms a group of some ranks, by
        a name that only they know it by. `wait_for_all_to_end` waits until all ranks have called
        it.
        """
        self.rank = rank
        self.size = size
        self.device = device
        self.gate = gate
        self._pending = pending
        self._queues = queues
        self.world = world if world is not None else distributed_c10d._get_default_group()
        self._control = control if control is not None else self.world
        self._form_smaller = form_smaller
        self.wait_for_all_to_end = wait_for_all_to_end
        """Wait until all ranks are at the end of their training, before any collective there."""

    def wrap(self, model: nn.Module, options: DDPOptions) -> DistributedDataParallel:
        """Average the gradients of a model on this rank's device over the ranks of this group.

        A backward pass in a group that breaks ends like any other, with gradients that are of no
        use: the gate alone tells. That the model is the same on all ranks, and remains so in its
        buffers, is left to the caller: DDP would wait in gloo.
        """
        wrapped = DistributedDataParallel(
            model,
            process_group=self.world,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            init_sync=False,
        )
        wrapped.broadcast_buffers = False
        average = _COMPRESSED.get(options.gradient_compression, self._mean)
        # DDP takes annotations that are text, as here, for wrong ones; a lambda has none.
        wrapped.register_comm_hook(None, lambda _, bucket: self._guarded(average, bucket))
        return wrapped

    def _mean(self, _: object, bucket: GradBucket) -> Future[Any]:
        gradients = bucket.buffer().div_(self.size)
        work: dist.Work = dist.all_reduce(gradients, group=self.world, async_op=True)
        return work.get_future()

    def _guarded(self, average: _Average, bucket: GradBucket) -> Future[Tensor]:
        """The mean of a bucket, or at last the bucket as it is in a group that breaks."""
        gradients = bucket.buffer()
        try:
            future = average(self.world, bucket)
            if self._queues:  # the host waits at the gate alone
                return future.then(value_of)
            return self._pending.guard(future, instead=gradients)
        except Exception as error:  # whatever it is, the gate raises it
            self._pending.fail(error)
            nothing: Future[Tensor] = Future()
            nothing.set_result(gradients)
            return nothing

    @property
    def is_broken(self) -> bool:
        """Whether this rank knows that it is of no more use."""
        return self._pending.failure is not None

    def share(self, *tensors: Tensor, source: int = 0) -> None:
        """Fill tensors, on this rank's device or the CPU, with rank `source`'s; in place.

        All of them, or none where the group breaks. Those of one type travel together.
        """
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        arriving: list[Tensor] = []
        for some in alike.values():
            # A copy: half of what was to arrive must not take the place of what is there.
            together = torch.cat([tensor.reshape(-1) for tensor in some])
            self._wait(self._broadcast(together, source))
            arriving.extend(torch.split(together, [tensor.numel() for tensor in some]))
        self.gate.wait()
        if self.rank != source:
            for tensor, part in zip(itertools.chain(*alike.values()), arriving, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def pass_on(self, tensor: Tensor, *, source: int) -> None:
        """Fill a tensor with rank `source`'s; where the group breaks, perhaps in part.

        It is whole when the gate says so.
        """
        self._wait(self._broadcast(tensor, source))

    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors on this rank's device by their sums; where the group breaks, in part.

        They are whole when the gate says so.
        """
        works = [dist.all_reduce(tensor, group=self.world, async_op=True) for tensor in tensors]
        for work in works:
            self._wait(work)

    def swap(self, parts: Tensor, came: Tensor) -> None:
        """Fill `came[r]` with what rank r has for this rank: `parts[r]` is for rank r.

        It is whole when the gate says so.
        """
        self._wait(dist.all_to_all_single(came, parts, group=self.world, async_op=True))

    def collect(self, own: Tensor, whole: Tensor) -> None:
        """Fill `whole` with the ranks' `own`, one after the other.

        It is whole when the gate says so.
        """
        self._wait(_all_gather_single(whole, own, group=self.world, async_op=True))

    def _broadcast(self, tensor: Tensor, source: int) -> dist.Work:
        work: dist.Work = dist.broadcast(tensor, src=source, group=self.world, async_op=True)
        return work

    def _wait(self, work: dist.Work, *, is_on_device: bool = True) -> None:
        if self._queues and is_on_device:
            work.wait()  # makes the device wait, and the gate the host
        else:
            self._pending.wait(work)

    # What a script's own collectives need.

    def form_smaller(self, ranks: tuple[int, ...], name: str) -> dist.ProcessGroup:
        """Form a group of some ranks, each of which calls this with the same name.

        Raises:
            RuntimeError: one of them is lost.
        """
        assert self._form_smaller is not None
        return self._form_smaller(ranks, name)

    def wait(self, work: dist.Work, tensors: Sequence[Tensor]) -> None:
        """Wait for a collective of any group of these ranks, which writes these tensors.

        On a device, what follows waits instead, and the gate tells whether it is whole.
        """
        is_on_device = any(tensor.device.type == self.device.type for tensor in tensors)
        self._wait(work, is_on_device=is_on_device)

    def future_of(self, work: dist.Work, outputs: list[Tensor]) -> Future[Any]:
        """A future of a collective, complete also when the group breaks."""
        if self._queues:
            return work.get_future()
        return self._pending.guard(future_of(work), instead=outputs, value=lambda _: outputs)

    def fail(self, error: Exception) -> None:
        """Note what broke the group: the gate raises it."""
        self._pending.fail(error)

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        self._pending.wait(dist.all_reduce(total, group=self._control, async_op=True))
        return [float(value) for value in total]

    def start_sum(self, value: Tensor) -> Callable[[], None]:
        """Begin to sum a CPU tensor over all ranks, in place; returns what waits for its end."""
        return self._pending.begin(dist.all_reduce(value, group=self._control, async_op=True))

    def broadcast(self, data: bytes | None, *, source: int = 0) -> bytes:
        """The `data` of rank `source`, on all ranks; for messages, which Python copies."""
        size = torch.tensor([len(data or b"")])
        self._send(size, source)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == source and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            self._send(buffer, source)
        return bytes(buffer.numpy().data)

    def _send(self, message: Tensor, source: int) -> None:
        self._pending.wait(dist.broadcast(message, src=source, group=self._control, async_op=True))

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, by rank, on all ranks; for messages, as `broadcast` is."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._pending.wait(
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self._control, async_op=True)
        )
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._pending.wait(dist.all_gather(parts, padded, group=self._control, async_op=True))
        return [
            bytes(part.numpy().data)[: int(size)] for part, size in zip(parts, sizes, strict=True)
        ]

    def compare(self, *values: float, among: float) -> tuple[list[float], float, int]:
        """Sums of values over all ranks; the greatest of their `among`, and the rank that has it.

        `among` counts in millionths; of equal ones, the last rank's is the greatest.
        """
        sums = torch.tensor(values, dtype=torch.float64)
        greatest = torch.tensor([round(among * 1e6) * _MOST_RANKS + self.rank])
        waits = [
            self._pending.begin(dist.all_reduce(tensor, kind, group=self._control, async_op=True))
            for tensor, kind in ((sums, dist.ReduceOp.SUM), (greatest, dist.ReduceOp.MAX))
        ]
        for wait in waits:
            wait()
        found, rank = divmod(int(greatest), _MOST_RANKS)
        return sums.tolist(), found / 1e6, rank

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)
