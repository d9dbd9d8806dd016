"""The launcher's thread for snapshots in memory: waits for datagrams of ranks and for changes."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ddp_protocol.message import from_json

from ddp_trainer.launcher.memory.pausing import Pausing
from ddp_trainer.launcher.memory.pod_memory import PodMemory
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.launcher.memory.protocol.peers import caller
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.memory.pausing import PauseRequest
from ddp_trainer.memory.volume import Volume
from ddp_trainer.system.logs import DistinctErrors

_MOST_BYTES = 4096
_MOST_AT_ONCE = 256
"""Datagrams to read before the next look: a rank could send them without end."""
_AFTER_ERROR_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Inbox:
    """Receives the datagrams of this pod's ranks."""

    def __init__(self, path: Path) -> None:
        """`path`: of the socket; an earlier launcher's is replaced.

        Raises:
            OSError: the socket cannot be created.
        """
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # the name of a socket has at most 107 bytes
            self._socket.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._event, select.POLLIN)

    def wake(self) -> None:
        """End the present or the next `wait`; for other threads."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._event, 1)

    def wait(self, seconds: float | None) -> list[RankReport]:
        """Wait for datagrams or `wake`, for some seconds at most; return valid reports."""
        self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        found: list[RankReport] = []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_AT_ONCE):
                content = self._socket.recv(_MOST_BYTES)
                with contextlib.suppress(ValueError, RecursionError):
                    found.append(from_json(RankReport, content))
        return found


def start_memory(
    env: Mapping[str, str], world: GroupState, rank_environment: RankEnvironment
) -> PodMemory | None:
    """Start to keep the snapshots of this pod; None: its volume cannot be written.

    Raises:
        ConfigurationError: a variable is malformed.
    """
    volume = Volume.from_env(env)
    if volume is None:
        return None
    try:
        store = Store(volume)
        inbox = Inbox(volume.socket)
    except OSError as error:
        _logger.warning("memory: no snapshots are kept: %s", error)
        return None
    call = caller(rank_environment.placement)
    memory = PodMemory(volume, store, world, rank_environment, call=call, wake=inbox.wake)
    world.memory, world.wake_memory = memory.news, inbox.wake
    pausing = Pausing(PauseRequest(volume), world)
    memory.copying.start()
    threading.Thread(target=_run, args=(memory, pausing, inbox), name="memory", daemon=True).start()
    return memory


def _run(memory: PodMemory, pausing: Pausing, inbox: Inbox) -> None:
    errors = DistinctErrors(_logger, "memory")
    due: float | None = None
    while True:
        for report in inbox.wait(None if due is None else due - time.monotonic()):
            memory.note(report)
            pausing.note(report)
        try:
            dues = memory.turn(time.monotonic()), pausing.look(memory.group, time.monotonic())
            due = min((one for one in dues if one is not None), default=None)
        except OSError as error:
            errors.log(error)
            due = time.monotonic() + _AFTER_ERROR_SECONDS
