"""Cuts a group's connections, so that no thread waits in them any longer.

gloo cannot interrupt a collective that waits for a frozen peer: after its `abort`, the thread still
waits until the group's timeout. A request to a store in a frozen process never returns either,
even after its timeout. Ending the connection always ends the wait, and each process can end its own
connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

_LOOK_SECONDS = 0.1
_LONGEST_ADDRESS = 128
"""Bytes of a sockaddr_storage."""


Endpoint = tuple[str, int]
"""A numeric address and a port."""


@dataclass(frozen=True)
class _OpenSocket:
    """A TCP socket of this process; the inode tells it from a later one with the same number."""

    fd: int
    inode: int
    here: Endpoint = field(compare=False)
    there: Endpoint | None = field(compare=False)
    """Address of its peer; None if it has none."""
    listens: bool = field(compare=False)


class Connections:
    """The sockets of one group in this process, apart from those that threads of a script open.

    Until the ranks meet, these are the connections to rank 0's store. While the group forms, its
    sockets cannot be distinguished, so all new ones count. After that, only connections to a
    port on which a rank listens count.

    Listening sockets are not cut, because gloo would abort the whole process. The exception are
    those of NCCL while it connects the devices, because there it waits for lost ranks.
    """

    def __init__(self, store_port: int) -> None:
        """`store_port`: port of rank 0's store."""
        self._store_port = store_port
        self._before = _open_sockets()
        self._before_forming: frozenset[_OpenSocket] | None = None
        self._before_joining: frozenset[_OpenSocket] | None = None
        self._chosen: frozenset[_OpenSocket] | None = None

    def begin_to_form(self) -> None:
        """Count sockets that are opened from now on as the group's."""
        self._before_forming = _open_sockets()

    def begin_to_join_devices(self) -> None:
        """Count sockets that are opened from now on as NCCL's; all of gloo's are open."""
        self._before_joining = _open_sockets()

    def listening(self) -> list[Endpoint]:
        """Return where this process has begun to listen since `begin_to_form`."""
        return [one.here for one in self._opened_to_form(_open_sockets()) if one.listens]

    def complete(self, listening: Collection[Endpoint]) -> None:
        """Keep only sockets of the group, which has formed; its ranks listen at these addresses."""
        now = _open_sockets()
        self._chosen = self._of_the_store(now) | {
            one
            for one in self._opened_to_form(now)
            if one.here in listening or one.there in listening
        }

    def cut(self) -> None:
        """End the connections for both sides; the file descriptors remain open for their owners."""
        chosen, of_devices = self._chosen, frozenset[_OpenSocket]()
        if chosen is None:
            now = _open_sockets()
            chosen = self._of_the_store(now) | self._opened_to_form(now)
            of_devices = _opened_since(self._before_joining, now)
        for one in chosen:
            if not one.listens or one in of_devices:
                with contextlib.suppress(OSError):
                    _cut(one)

    def _of_the_store(self, now: frozenset[_OpenSocket]) -> frozenset[_OpenSocket]:
        return frozenset(
            one
            for one in now - self._before
            if self._store_port in (one.here[1], one.there[1] if one.there else None)
        )

    def _opened_to_form(self, now: frozenset[_OpenSocket]) -> frozenset[_OpenSocket]:
        return _opened_since(self._before_forming, now)

    @contextmanager
    def cut_unless_done_within(
        self, seconds: float, *, is_vain: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Cut the connections if the block lasts longer or `is_vain` returns True; it then fails.

        Later connections of the block are cut too, because torch reconnects to a store by itself.
        """
        done = threading.Event()
        until = time.monotonic() + seconds

        def watch() -> None:
            is_over = False
            while not done.wait(_LOOK_SECONDS):
                is_over = is_over or is_vain() or time.monotonic() >= until
                if is_over:
                    self.cut()

        threading.Thread(target=watch, name="ddp: limits a connection", daemon=True).start()
        try:
            yield
        finally:
            done.set()


def _opened_since(
    before: frozenset[_OpenSocket] | None, now: frozenset[_OpenSocket]
) -> frozenset[_OpenSocket]:
    """Return the sockets that were not open `before`; none if `before` is None."""
    return frozenset() if before is None else now - before


def _open_sockets() -> frozenset[_OpenSocket]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            fd, status = int(name), os.fstat(int(name))
            here = _endpoint(_libc.getsockname, fd) if stat.S_ISSOCK(status.st_mode) else None
            if here is not None and _option(fd, socket.SO_TYPE) == socket.SOCK_STREAM:
                listens = bool(_option(fd, socket.SO_ACCEPTCONN))
                there = _endpoint(_libc.getpeername, fd)
                found.add(_OpenSocket(fd, status.st_ino, here, there, listens))
    return frozenset(found)


# Not with Python's sockets: if a script has set a default timeout, creating one from a descriptor
# makes the socket non-blocking, also for its owner.
_libc = ctypes.CDLL(None)


def _endpoint(ask: Callable[..., int], fd: int) -> Endpoint | None:
    """Return the result of getsockname or getpeername; None if it is no network address."""
    answer = ctypes.create_string_buffer(_LONGEST_ADDRESS)
    if ask(fd, answer, ctypes.byref(ctypes.c_uint32(_LONGEST_ADDRESS))) != 0:
        return None
    family, port = struct.unpack_from("=H", answer)[0], struct.unpack_from("!H", answer, 2)[0]
    if family == socket.AF_INET:
        return str(IPv4Address(answer.raw[4:8])), port
    if family == socket.AF_INET6:
        address = IPv6Address(answer.raw[8:24])
        return str(address.ipv4_mapped or address), port
    return None


def _option(fd: int, name: int) -> int:
    value = ctypes.c_int()
    length = ctypes.byref(ctypes.c_uint32(ctypes.sizeof(value)))
    _libc.getsockopt(fd, socket.SOL_SOCKET, name, ctypes.byref(value), length)
    return value.value


def _cut(one: _OpenSocket) -> None:
    copy = os.dup(one.fd)
    with socket.socket(fileno=copy) as connection:
        if os.fstat(copy).st_ino == one.inode:
            connection.shutdown(socket.SHUT_RDWR)
