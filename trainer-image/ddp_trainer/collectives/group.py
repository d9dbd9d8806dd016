"""The collectives of one process group.

The training loop sees ranks, a device and a few collectives, never a backend or a store. Control
messages (stop flags, states, scores) always travel over gloo on the CPU. With NCCL they would wait
for the GPU, and NCCL notices a dead peer much later than gloo does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future

from ddp_trainer.collectives.ddp_group import DDPGroup
from ddp_trainer.collectives.fixed_buckets import FixedBuckets
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
"""Leaves 43 bits for a compared value: for seconds in millionths, three months."""


class Group:
    """A process group as seen by one of its ranks; unusable once it broke."""

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
        """`queues`: the device executes work, including collectives, asynchronously.

        `world`: torch's group of all ranks; None: the present default group. `control`: the group
        for control messages; None: `world`. `form_smaller` forms a group of some ranks under a name
        that only they use. `wait_for_all_to_end` waits until all ranks have called it.
        """
        self.rank = rank
        self.size = size
        self.device = device
        self.gate = gate
        self._pending = pending
        self.queues = queues
        self.world = world if world is not None else distributed_c10d._get_default_group()
        self._control = control if control is not None else self.world
        self._form_smaller = form_smaller
        self.wait_for_all_to_end = wait_for_all_to_end
        """Wait until all ranks are at the end of the training, before any collective there."""

    def wrap(
        self,
        model: nn.Module,
        options: DDPOptions,
        *,
        when_averaging: Callable[[], None] = lambda: None,
    ) -> FixedBuckets:
        """Average the gradients of a model on this rank's device over the ranks of this group.

        If the group breaks, a backward pass ends normally but its gradients are useless; only the
        gate reports that. The caller must keep the model and its buffers equal on all ranks,
        because DDP would wait in gloo for that. `when_averaging` is called for each bucket.
        """
        wrapped = FixedBuckets(
            model,
            process_group=DDPGroup(self.world, self._pending, queues=self.queues),
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            init_sync=False,
        )
        wrapped.broadcast_buffers = False
        average = _COMPRESSED.get(options.gradient_compression, self._mean)

        def averaged(_: object, bucket: GradBucket) -> Future[Tensor]:
            when_averaging()
            return self._guarded(average, bucket)

        averaged.__annotations__.clear()  # DDP rejects strings, as in this file
        wrapped.register_comm_hook(None, averaged)
        return wrapped

    def _mean(self, _: object, bucket: GradBucket) -> Future[Any]:
        # As DDP does without a hook: for three ranks, product and quotient round differently.
        gradients = bucket.buffer()
        if gradients.is_sparse:
            gradients.div_(self.size)
        else:
            gradients.mul_(1 / self.size)
        work: dist.Work = dist.all_reduce(gradients, group=self.world, async_op=True)
        return work.get_future()

    def _guarded(self, average: _Average, bucket: GradBucket) -> Future[Tensor]:
        """Return the mean of a bucket, or the unchanged bucket if the group breaks."""
        gradients = bucket.buffer()
        try:
            future = average(self.world, bucket)
            if self.queues:  # the host waits only at the gate
                return future.then(value_of)
            return self._pending.guard(future, instead=gradients)
        except Exception as error:  # of any kind: the gate raises it
            self._pending.fail(error)
            nothing: Future[Tensor] = Future()
            nothing.set_result(gradients)
            return nothing

    @property
    def is_broken(self) -> bool:
        """Return whether this rank knows that the group broke."""
        return self._pending.failure is not None

    def broadcast_tensors(self, *tensors: Tensor, source: int = 0) -> None:
        """Overwrite tensors, on this rank's device or the CPU, with those of rank `source`.

        If the group breaks, none changes. Tensors of one type travel together.
        """
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        # Copies, because a half-received tensor must not replace the present one.
        copies = [torch.cat([tensor.reshape(-1) for tensor in some]) for some in alike.values()]
        for work in [self._broadcast(each, source) for each in copies]:
            self._wait(work)
        self.gate.wait()
        if self.rank != source:
            for some, together in zip(alike.values(), copies, strict=True):
                parts = torch.split(together, [tensor.numel() for tensor in some])
                shaped = [part.view(one.shape) for part, one in zip(parts, some, strict=True)]
                torch._foreach_copy_(some, shaped)

    def broadcast_tensor(self, tensor: Tensor, *, source: int) -> None:
        """Overwrite a tensor with that of rank `source`; only partly if the group breaks.

        The gate reports whether it is complete.
        """
        self._wait(self._broadcast(tensor, source))

    def all_reduce(self, *tensors: Tensor) -> None:
        """Replace tensors on this rank's device by their sums; only partly if the group breaks.

        The gate reports whether they are complete.
        """
        works = [dist.all_reduce(tensor, group=self.world, async_op=True) for tensor in tensors]
        for work in works:
            self._wait(work)

    def all_to_all(self, parts: Tensor, came: Tensor) -> None:
        """Send `parts[r]` to rank r, and receive in `came[r]` what rank r sends to this rank.

        The gate reports whether it is complete.
        """
        self._wait(dist.all_to_all_single(came, parts, group=self.world, async_op=True))

    def all_gather(self, own: Tensor, whole: Tensor) -> None:
        """Fill `whole` with the `own` of all ranks, one after the other.

        The gate reports whether it is complete.
        """
        self._wait(_all_gather_single(whole, own, group=self.world, async_op=True))

    def _broadcast(self, tensor: Tensor, source: int) -> dist.Work:
        work: dist.Work = dist.broadcast(tensor, src=source, group=self.world, async_op=True)
        return work

    def _wait(self, work: dist.Work, *, is_on_device: bool = True) -> None:
        if self.queues and is_on_device:
            work.wait()  # the device waits here, the host at the gate
        else:
            self._pending.wait(work)

    # For a script's own collectives.

    def form_smaller(self, ranks: tuple[int, ...], name: str) -> dist.ProcessGroup:
        """Form a group of some ranks; each of them must call this with the same name.

        Raises:
            RuntimeError: one of them is lost.
        """
        assert self._form_smaller is not None
        return self._form_smaller(ranks, name)

    def wait(self, work: dist.Work, tensors: Sequence[Tensor]) -> None:
        """Wait for a collective of any group of these ranks that writes these tensors.

        On a device, later work waits instead, and the gate reports whether it is complete.
        """
        is_on_device = any(tensor.device.type == self.device.type for tensor in tensors)
        self._wait(work, is_on_device=is_on_device)

    def future_of(self, work: dist.Work, outputs: list[Tensor]) -> Future[Any]:
        """Return a future of a collective that completes even if the group breaks."""
        if self.queues:
            return work.get_future()
        return self._pending.guard(future_of(work), instead=outputs, value=lambda _: outputs)

    def fail(self, error: Exception) -> None:
        """Note the error that broke the group; the gate raises it."""
        self._pending.fail(error)

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        self._pending.wait(dist.all_reduce(total, group=self._control, async_op=True))
        return [float(value) for value in total]

    def start_sum(self, value: Tensor) -> Callable[[], None]:
        """Begin to sum a CPU tensor over all ranks, in place; return a function that waits."""
        return self._pending.begin(dist.all_reduce(value, group=self._control, async_op=True))

    def start_send(self, tensor: Tensor, *, to: int, tag: int) -> Callable[[], None]:
        """Begin to send a CPU tensor to rank `to`; return a function that waits."""
        return self._pending.begin(self._control.send([tensor], to, tag))

    def start_receive(self, tensor: Tensor, *, source: int, tag: int) -> Callable[[], None]:
        """Begin to fill a CPU tensor with what rank `source` sends; return a function that waits.

        If the group breaks, the tensor may still change for a while.
        """
        return self._pending.begin(self._control.recv([tensor], source, tag))

    def broadcast(self, data: bytes | None, *, source: int = 0) -> bytes:
        """Return rank `source`'s `data` on all ranks; for messages, because Python copies it."""
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
        """Return every rank's `data`, by rank, on all ranks; for messages, like `broadcast`."""
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
        """Return sums of values over all ranks, the greatest `among`, and the rank that has it.

        `among` is compared in millionths; of equal values, the last rank's counts as greatest.
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

    def bounds(self, *values: int | None) -> list[tuple[int, int]]:
        """Return the least and the greatest of each signed 64-bit value; None: of other ranks."""
        known = [*values, *(None if value is None else ~value for value in values)]
        both = torch.tensor([-1 << 63 if value is None else value for value in known])
        work = dist.all_reduce(both, dist.ReduceOp.MAX, group=self._control, async_op=True)
        self._pending.wait(work)
        return [(~least, most) for most, least in zip(*both.reshape(2, -1).tolist(), strict=True)]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)
