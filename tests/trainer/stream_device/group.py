"""A process group with collectives that run on a stream and end when aborted, complete or not.

As with NCCL, a collective's future is complete when the collective is queued. Its data comes later.
If a peer is gone, the data never comes and no error is raised: the stream stops until the group is
aborted. Then it continues with nothing written, or with half of a bucket.

As with NCCL, no collective begins on an aborted communicator. torch raises a DistBackendError
then, and with TORCH_NCCL_BLOCKING_WAIT also in a wait for a collective.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, Store
from torch.futures import Future

from tests.trainer.stream_device.stream import Mark, Stream

_LONGEST_JOURNEY_SECONDS = 0.004
_TRANSPORT_TIMEOUT = timedelta(hours=1)
_MAY_RETURN_NONE = hasattr(AllreduceOptions, "asyncOp")
"""Since torch 2.8, NCCL returns no work for a collective that is not asynchronous.

torch 2.7 passes `asyncOp` in a few options only, and waits for the work of every collective."""


class StreamWork(dist.Work):
    def __init__(self, group: StreamGroup, mark: Mark, outputs: list[Tensor]) -> None:
        super().__init__()
        self._group = group
        self._mark = mark
        self._future: Future[Any] = Future()
        self._future.set_result(outputs)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return at once, because later work of the stream waits anyway.

        For the collectives of layers, which are not asynchronous, torch itself waits: the host
        computes with their results.
        """
        del timeout
        if _torch_waits():
            self._mark.synchronize()
        self._group.check()
        return True

    def get_future(self) -> Future[Any]:
        return self._future


def _torch_waits() -> bool:
    """Return whether torch itself waits, through the trainer's own work or not."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in {"wait", "_wait"} and frame.f_back is not None:
        frame = frame.f_back
    return bool(frame.f_globals["__name__"] == dist.all_reduce.__module__)


class StreamGroup(dist.ProcessGroup):
    """Collectives of CPU tensors, sent by gloo and executed by the stream."""

    def __init__(
        self, stream: Stream, store: Store, rank: int, size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's hint knows one of two
        self._stream = stream
        self._transport: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._transport._set_default_timeout(_TRANSPORT_TIMEOUT)
        self._dice = random.Random(rank)
        self._aborted = threading.Event()
        self._ended = threading.Event()
        self.spoilt = 0
        """Number of collectives that ended incomplete."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        return "stream"

    # The overloads that torch calls.
    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], options: Any
    ) -> StreamWork | None:
        return self._queue(
            tensors, lambda copies: self._transport.allreduce(copies, options), options
        )

    def broadcast(  # type: ignore[override]
        self, tensors: list[Tensor], options: Any
    ) -> StreamWork | None:
        return self._queue(
            tensors, lambda copies: self._transport.broadcast(copies, options), options
        )

    def all_gather_single(  # type: ignore[override]
        self, output: Tensor, own: Tensor, options: Any
    ) -> StreamWork | None:
        def begin(copies: list[Tensor]) -> Any:
            parts = list(copies[0].view(self.size(), -1).unbind())
            return self._transport.allgather([parts], [own.reshape(-1).contiguous()])

        return self._queue([output], begin, options)

    def all_to_all_single(  # type: ignore[override]
        self, output: Tensor, own: Tensor, came: list[int], sent: list[int], options: Any
    ) -> StreamWork | None:
        return self._queue(
            [output],
            lambda copies: self._transport.alltoall_base(copies[0], own, came, sent, options),
            options,
        )

    # Before torch 2.13 they have these names.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> StreamWork | None:
        [own] = inputs  # torch 2.7 passes no options
        return self._queue(
            outputs[0],
            lambda copies: self._transport.allgather([copies], [own.clone()]),
            options,
        )

    def check(self) -> None:
        """Raise torch's error for an aborted communicator."""
        if self._aborted.is_set():
            raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}.")

    def abort(self) -> None:
        """Let the stream continue; return when it has done all its work, like NCCL's abort.

        So it never returns if the stream is at a collective of another group that nobody aborts.
        """
        self._aborted.set()
        self._ended.set()
        self._stream.synchronize()

    def wait_for_abort(self) -> None:
        self._aborted.wait()

    def shutdown(self) -> None:
        """Do nothing: no work is in progress."""

    def _queue(
        self, outputs: list[Tensor], begin: Callable[[list[Tensor]], Any], options: Any
    ) -> StreamWork | None:
        """Queue a collective; return None where NCCL does."""

        def carry_out() -> None:
            copies = [tensor.clone() for tensor in outputs]
            if self._arrives(copies, begin):
                for tensor, copy in zip(outputs, copies, strict=True):
                    tensor.copy_(copy)
                return
            self.wait_for_abort()
            self.spoilt += 1
            if self.spoilt % 2:
                for tensor in outputs:
                    half = tensor.view(-1)[: tensor.numel() // 2]
                    half.copy_(half * 3 + 1)

        self.check()
        self._stream.queue(carry_out)
        if _MAY_RETURN_NONE and not getattr(options, "asyncOp", True):
            return None
        return StreamWork(self, self._stream.record(), outputs)

    def _arrives(self, copies: list[Tensor], begin: Callable[[list[Tensor]], Any]) -> bool:
        time.sleep(self._dice.uniform(0, _LONGEST_JOURNEY_SECONDS))
        self._ended.clear()
        if self._aborted.is_set():
            return False
        try:
            future = begin(copies).get_future()
            # The callback may be freed last by a thread of gloo, which must not free the group.
            ended = self._ended
            future.add_done_callback(lambda _: ended.set())
            ended.wait()
            if future.done():
                future.value()
        except RuntimeError:  # a peer is gone
            return False
        return not self._aborted.is_set()
