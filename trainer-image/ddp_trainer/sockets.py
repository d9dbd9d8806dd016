"""Cuts a group's connections, so that nobody waits in them any longer.

gloo offers no way to interrupt a collective that waits for a frozen peer: its `abort` leaves the
waiting thread where it is until the group's timeout. What always ends the wait is the end of the
connection, and the connections are this process's own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class OpenSocket:
    """A socket of this process; the inode tells it from a later one with the same number."""

    fd: int
    inode: int


def open_sockets() -> frozenset[OpenSocket]:
    """All sockets that this process holds."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add(OpenSocket(int(name), status.st_ino))
    return frozenset(found)


def cut(sockets: Iterable[OpenSocket]) -> None:
    """End the connections for both sides; the descriptors stay with whoever opened them."""
    for one in sockets:
        with contextlib.suppress(OSError):
            copy = os.dup(one.fd)
            with socket.socket(fileno=copy) as connection:
                # The end of a listening socket makes gloo abort the whole process.
                listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if os.fstat(copy).st_ino == one.inode and not listens:
                    connection.shutdown(socket.SHUT_RDWR)
