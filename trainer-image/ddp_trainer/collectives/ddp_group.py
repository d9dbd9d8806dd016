"""The process group that DDP receives, so that its own collectives do not fail in a script.

DDP averages gradients by a hook, but calls two collectives itself: it sums the map of used
parameters in a backward pass, and broadcasts the layout of its buckets in a forward pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch._C import _distributed_c10d
from torch.futures import Future

from ddp_trainer.collectives.pending import PendingWork


class DDPGroup(dist.ProcessGroup):
    """Forwards DDP's own collectives to the group of all ranks."""

    def __init__(self, world: dist.ProcessGroup, pending: PendingWork, *, queues: bool) -> None:
        """`pending`: notes failures. `queues`: the device executes collectives asynchronously."""
        super().__init__(world.rank(), world.size())  # type: ignore[call-arg]  # wrong stub
        self._world = world
        self._pending = pending
        self._queues = queues

    def allreduce(self, tensors: list[Tensor], options: Any) -> dist.Work:  # type: ignore[override]
        """Begin a sum; if the group breaks, it ends normally, and the gate raises the error."""
        try:
            work: dist.Work = self._world.allreduce(tensors, options)
            if self._queues:  # the host waits only at the gate
                return work
            future: Future[Any] = self._pending.guard(
                work.get_future(), instead=tensors, value=lambda _: tensors
            )
        except Exception as error:  # of any kind: the gate raises it
            self._pending.fail(error)
            future = Future()
            future.set_result(tensors)
        ended: dist.Work = _distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]
        return ended

    def broadcast(self, tensors: list[Tensor], options: Any) -> dist.Work:  # type: ignore[override]
        """Broadcast from rank 0.

        Raises:
            Exception: the group broke. DDP must not use tensors that are only partly complete.
        """
        work: dist.Work = self._world.broadcast(tensors, options)
        if not self._queues:
            self._pending.wait(work)
        return work
