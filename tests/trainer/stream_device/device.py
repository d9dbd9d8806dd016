"""A device with a stream, on which the trainer of this process computes instead of a GPU.

It computes on the CPU. Collectives, the optimizer's step and the undoing of a step are queued on a
stream, in order, and the host runs ahead of them, because these decide whether a broken collective
does harm. Before the host computes with data that a GPU would have in the stream, it waits for the
stream.
"""

from __future__ import annotations

import copy
import functools
import socket
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ddp_trainer.collectives import shard_gradients
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.devices.accelerator import Contact
from ddp_trainer.devices.gate import Event, Gate
from ddp_trainer.library.checks import first_step, probe
from ddp_trainer.library.steps import net
from ddp_trainer.loop import learner
from ddp_trainer.process_group import connection, world
from ddp_trainer.process_group.connection import Connection
from ddp_trainer.run import passes, train_state, updates
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d
from torch.futures import Future

from tests.trainer.stream_device import kernels
from tests.trainer.stream_device.group import StreamGroup
from tests.trainer.stream_device.kernels import replace
from tests.trainer.stream_device.stream import Stream
from tests.trainer.support import fault_injection

STREAM = Stream()
LEAVE_SECONDS = 5.0
_SLOWNESS_SECONDS = 0.5
"""Delay of a sabotaging thread: longer than a step of the training."""


class StreamCommunicator:
    """Connects the streams of one group."""

    def __init__(self, group: StreamGroup, control: dist.ProcessGroup | None) -> None:
        self._group = group
        self.control = control

    def trouble(self) -> str | None:
        """Notice nothing, the worst that a communicator can do."""
        return None

    def abort(self) -> None:
        """Let the stream continue."""
        self._group.abort()


class StreamDevice:
    def join(self, contact: Contact, *, on_contact: Callable[[], object]) -> StreamCommunicator:
        """Make the default group of streams, and beside it one of gloo."""
        contact.make_group("stream")
        group = distributed_c10d._get_default_group()
        assert isinstance(group, StreamGroup)
        control = dist.new_group(backend="gloo", timeout=contact.timeout)
        on_contact()
        fault_injection.reach("joining")
        _wait_for_all(contact.store, rank=contact.rank, world_size=contact.world_size)
        return StreamCommunicator(group, control)

    def record(self) -> Event:
        """Mark the end of the work queued on the stream."""
        return STREAM.record()


class Sabotage(StrEnum):
    """A protection that is removed from the trainer, to show that it is needed."""

    NO_GATE = "no gate"
    """Nothing waits for the stream before a step is taken."""
    EVENT_ALONE = "event alone"
    """An event of the stream is enough, even if an abort completed it."""
    ABORT_FIRST = "abort first"
    """The group is aborted before its failure is set."""


def _wait_for_all(store: Store, *, rank: int, world_size: int) -> None:
    """Wait like NCCL's initialisation: if a rank is gone, until the listening socket is cut.

    The store is polled until all ranks are there; only then is the socket closed.
    """
    with socket.create_server(("127.0.0.1", 0)) as root:
        root.setblocking(False)
        is_store_there = True
        while True:
            try:
                if is_store_there:
                    store.set(f"joining/{rank}", "")
                    if store.check([f"joining/{other}" for other in range(world_size)]):
                        return
            except RuntimeError:
                is_store_there = False
            time.sleep(0.001)
            try:
                root.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                raise dist.DistBackendError(
                    "NCCL error in: NCCLUtils.cpp:94, unhandled system error\nncclSystemError: "
                    f"Last error: ncclOsSocketTryAccept: Accept failed: {error.strerror}"
                ) from error


def _wait_for_ever() -> None:
    threading.Event().wait()


def hang() -> None:
    STREAM.queue(_wait_for_ever)


def stall() -> None:
    """Cut the link to the others: no collective ends although all ranks run."""
    STREAM.queue(_present_group().wait_for_abort)


def _present_group() -> StreamGroup:
    group = distributed_c10d._get_default_group()
    if isinstance(group, ScriptGroup):
        group = group.formed
    assert isinstance(group, StreamGroup)
    return group


def fail() -> None:
    """Let the device report an error to every query while the process runs."""
    STREAM.queue(_raise)


def be_busy() -> None:
    """Let the script do other work for longer than devices may take to leave a group."""
    time.sleep(2 * LEAVE_SECONDS)


def _raise() -> None:
    raise RuntimeError("device-side assert triggered")


def install(sabotage: Sabotage | None = None) -> None:
    """Make this the device of the process and of processes forked from it."""
    kernels.install()
    fault_injection.ACTIONS |= {"hang": hang, "stall": stall, "fail": fail, "be busy": be_busy}
    # Long enough for a device that is a thread.
    replace(connection, "_DRAIN_SECONDS", 2.0)
    replace(connection, "_LEAVE_SECONDS", LEAVE_SECONDS)
    dist.Backend.register_backend("stream", functools.partial(StreamGroup, STREAM), devices=["cpu"])
    replace(world, "accelerator_for", lambda *_: StreamDevice())
    replace(learner, "check_abilities", lambda *_: None)
    _queue(nn.utils, "clip_grad_norm_")
    _queue(shard_gradients, "mean_in_order")
    _queue(shard_gradients, "fill")
    _queue(updates.Updates, "apply")
    _queue(passes.Passes, "take_back")
    _synchronize_before(train_state.TrainState, "state_dict", "load_state_dict")
    _synchronize_before(passes.Passes, "before")
    _synchronize_before(net.Net, "forward")
    for reader in (first_step, passes):
        _synchronize_before(reader, "sum_of_bits")
    # The stream clears gradients in its thread; a GPU's host does that itself, before this.
    _synchronize_before(probe, "put_back")
    match sabotage:
        case Sabotage.NO_GATE:
            replace(Gate, "wait", lambda _: None)
        case Sabotage.EVENT_ALONE:
            replace(Gate, "wait", lambda _: STREAM.synchronize())
        case Sabotage.ABORT_FIRST:
            _fail_late()


def _fail_late() -> None:
    give_up, end = Connection.give_up, PendingWork._end

    def give_up_late(broken: Connection, why: str) -> None:
        _abort_and_linger()
        give_up(broken, why)

    def end_late(pending: PendingWork, future: Future[Any], settle: Callable[..., None]) -> None:
        try:
            future.value()
        except RuntimeError:
            _abort_and_linger()
        end(pending, future, settle)

    replace(Connection, "give_up", give_up_late)
    replace(PendingWork, "_end", end_late)


def _abort_and_linger() -> None:
    if dist.is_initialized():
        _present_group().abort()
        STREAM.synchronize()
        time.sleep(_SLOWNESS_SECONDS)


def _queue(owner: object, name: str) -> None:
    original: Callable[..., None] = getattr(owner, name)

    def queued(of: object, *arguments: object, **options: object) -> None:
        # Copies, because the host continues and changes the position that it has passed.
        copies = [one if isinstance(one, Tensor) else copy.copy(one) for one in arguments]
        STREAM.queue(functools.partial(original, of, *copies, **options))

    replace(owner, name, queued)


def _synchronize_before(owner: object, *names: str) -> None:
    for name in names:
        original = getattr(owner, name)
        replace(owner, name, _after(STREAM.synchronize, original))


def _after(first: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def both(*arguments: Any, **options: Any) -> Any:
        first()
        return original(*arguments, **options)

    return both
