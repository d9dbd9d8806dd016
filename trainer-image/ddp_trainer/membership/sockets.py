"""Cuts a group's connections, so that nobody waits in them any longer.

gloo offers no way to interrupt a collective that waits for a frozen peer: its `abort` leaves the
waiting thread where it is until the group's timeout. A request to a store whose process is frozen
never returns either, whatever its timeout. What always ends the wait is the end of the connection,
and the connections are this process's own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class _OpenSocket:
    """A socket of this process; the inode tells it from a later one with the same number."""

    fd: int
    inode: int


class Connections:
    """The sockets that this process opens from now on, whoever opens them in it."""

    def __init__(self) -> None:
        self._before = _open_sockets()
        self._chosen: frozenset[_OpenSocket] | None = None

    def complete(self) -> None:
        """Leave out whatever is opened from here on."""
        self._chosen = _open_sockets() - self._before

    def cut(self) -> None:
        """End the connections for both sides; the descriptors stay with whoever opened them."""
        for one in _open_sockets() - self._before if self._chosen is None else self._chosen:
            with contextlib.suppress(OSError):
                _cut(one)

    @contextmanager
    def cut_unless_done_within(
        self, seconds: float, *, is_vain: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Cut them if the block lasts longer, or does its work in vain, which makes it fail.

        Those too that it opens after that: torch connects to a store again by itself.
        """
        done = threading.Event()
        until = time.monotonic() + seconds

        def watch() -> None:
            is_over = False
            while not done.wait(_LOOK_SECONDS):
                is_over = is_over or is_vain() or time.monotonic() >= until
                if is_over:
                    self.cut()

        threading.Thread(target=watch, name="deadline", daemon=True).start()
        try:
            yield
        finally:
            done.set()


def _open_sockets() -> frozenset[_OpenSocket]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add(_OpenSocket(int(name), status.st_ino))
    return frozenset(found)


def _cut(one: _OpenSocket) -> None:
    copy = os.dup(one.fd)
    with socket.socket(fileno=copy) as connection:
        # The end of a listening socket makes gloo abort the whole process.
        listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if os.fstat(copy).st_ino == one.inode and not listens:
            connection.shutdown(socket.SHUT_RDWR)
