"""Informs all ranks of a group at once that the process of another one has ended.

A process that ends closes its connections. gloo reports that to ranks that wait in its collectives.
But a host that waits for its GPU, as in `loss.item()`, or for the end of training, does not notice,
and NCCL does not report a lost peer. So each rank keeps a connection to rank 0 while it is in the
group, and a thread listens on it. A rank that leaves in order says so first. Any other end of a
connection breaks the group, and rank 0 informs the others.

A lost node closes no connection: see `heartbeat`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from weakref import WeakSet

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.system.threads import start_thread

_KEY_BYTES = 16
_RANK_BYTES = 4
_IN_ORDER = b"\0"
_WELCOME = b"\1"
"""Rank 0's answer; without it, a rank could leave, or lose rank 0, before rank 0 knows it."""
_LONGEST_BYTES = 1024
"""Most bytes that a rank sends: key, number, and the reason why it leaves."""
_GREETING_SECONDS = 30.0
"""Time for a connected rank to send its number."""
_SPARE_CONNECTIONS = 64
"""Connections without a rank number that are accepted, beside one for each rank."""
_KEEPALIVE_SECONDS = 300
"""The connection is silent for days, and firewalls drop connections that are idle for hours."""
_LOOK_SECONDS = 5.0
"""Time between checks for connections that sent no rank number in time."""


@dataclass(eq=False)
class _Line:
    """A connection and the bytes received over it."""

    socket: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    begun: float = field(default_factory=time.monotonic)
    rank: int | None = None
    """Rank of the other side; None: not known yet."""

    def read(self) -> bool:
        """Read the received bytes; return whether the connection has ended."""
        try:
            data = self.socket.recv(_LONGEST_BYTES)
        except OSError:
            data = b""
        self.heard += data[: _LONGEST_BYTES - len(self.heard)]
        return not data

    def end(self, last: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(last, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Lifeline:
    """One rank's connections to the others."""

    def __init__(self, rank: int, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called at most once, in a thread, with a sentence that names the rank."""
        self._rank = rank
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._left = False
        self._lines: set[_Line] = set()
        self._listener: socket.socket | None = None
        _open.add(self)

    def listen(self, size: int) -> tuple[int, str]:
        """On rank 0: accept the others; return the port and the key that they must send.

        `size`: ranks in the group.
        """
        key = secrets.token_bytes(_KEY_BYTES)
        if socket.has_dualstack_ipv6():
            self._listener = socket.create_server(
                ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN
            )
        else:
            self._listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self._listener.setblocking(False)
        start_thread(
            "ddp: watches all connections", lambda: self._watch_all(key, size + _SPARE_CONNECTIONS)
        )
        return int(self._listener.getsockname()[1]), key.hex()

    def connect(self, address: str, port: int, key: str, *, within_seconds: float) -> None:
        """On any other rank: connect to rank 0.

        Raises:
            BrokenGroupError: rank 0 is gone or does not answer.
        """
        try:
            connection = socket.create_connection((address, port), within_seconds)
            connection.sendall(bytes.fromhex(key) + self._rank.to_bytes(_RANK_BYTES))
            if connection.recv(1) != _WELCOME:
                raise ConnectionResetError("it has left the group")
        except OSError as error:
            raise BrokenGroupError(f"rank 0 does not answer at {address}: {error}") from error
        connection.settimeout(None)
        _keep_alive(connection)
        line = _Line(connection, rank=0)
        with self._lock:
            self._lines.add(line)
        start_thread("ddp: watches a connection", lambda: self._watch(line))

    def leave(self, why: str | None = None) -> None:
        """Leave the group; callable from any thread. Only the first call has an effect.

        `why`: what broke the group; the others receive it. Empty: the others see that this rank
        ended or gave up. None: this rank leaves in order.
        """
        last = _IN_ORDER if why is None else why.encode()[:_LONGEST_BYTES]
        with self._lock:
            if self._left:
                return
            self._left = True
            for line in self._lines:
                line.end(last)
            if self._listener is not None:
                with contextlib.suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def close_in_child(self) -> None:
        """Close the sockets in a forked process, which must not keep them open."""
        for line in list(self._lines):
            line.socket.close()
        if self._listener is not None:
            self._listener.close()

    def _watch(self, line: _Line) -> None:
        while not line.read():
            pass
        line.socket.close()
        self._tell(line)

    def _watch_all(self, key: bytes, most: int) -> None:
        listener = self._listener
        assert listener is not None
        with DefaultSelector() as selector:
            selector.register(listener, EVENT_READ)
            while not self._left:
                for ready, _ in selector.select(_LOOK_SECONDS):
                    line: _Line | None = ready.data
                    if line is None:
                        self._accept(listener, selector, most)
                    elif line.read():
                        self._forget(line, selector)
                        if line.rank is not None:
                            self._tell(line)
                    elif line.rank is None and not self._knows(line, key):
                        self._forget(line, selector)
                for line in [*self._lines]:
                    if line.rank is None and time.monotonic() > line.begun + _GREETING_SECONDS:
                        self._forget(line, selector)
            with self._lock:  # not before the others have received the reason
                for line in self._lines:
                    line.socket.close()
        listener.close()

    def _accept(self, listener: socket.socket, selector: DefaultSelector, most: int) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            _keep_alive(connection)
            line = _Line(connection)
            with self._lock:
                strangers = sum(other.rank is None for other in self._lines)
                if self._left or strangers >= most:
                    connection.close()
                    return
                self._lines.add(line)
            selector.register(connection, EVENT_READ, line)

    def _forget(self, line: _Line, selector: DefaultSelector) -> None:
        selector.unregister(line.socket)
        with self._lock:
            self._lines.discard(line)
        line.socket.close()

    def _knows(self, line: _Line, key: bytes) -> bool:
        """Return whether a line has sent the key and a rank number, or may still send them."""
        size = len(key) + _RANK_BYTES
        if len(line.heard) >= size and secrets.compare_digest(line.heard[: len(key)], key):
            line.rank = int.from_bytes(line.heard[len(key) : size])
            del line.heard[:size]
            with contextlib.suppress(OSError):
                line.socket.send(_WELCOME, socket.MSG_NOSIGNAL)
        return line.rank is not None or len(line.heard) < size

    def _tell(self, line: _Line) -> None:
        heard = bytes(line.heard)
        if heard.startswith(_IN_ORDER) or self._left:
            return
        why = heard.decode(errors="replace") or f"rank {line.rank} has ended, or left the group"
        self.leave(why)
        self._on_lost(why)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)


_open: WeakSet[Lifeline] = WeakSet()


def _close_in_child() -> None:
    for lifeline in list(_open):
        lifeline.close_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


def tie(
    group: Group, address: str, on_lost: Callable[[str], None], *, within_seconds: float
) -> Lifeline:
    """Connect the lifelines of all ranks; a collective.

    `address`: of rank 0, as this rank reaches it.

    Raises:
        BrokenGroupError: rank 0 does not answer within the time.
        RuntimeError: a rank was lost meanwhile.
    """
    lifeline = Lifeline(group.rank, on_lost)
    if group.rank == 0:
        group.broadcast(json.dumps(lifeline.listen(group.size)).encode())
    else:
        port, key = json.loads(group.broadcast(None))
        lifeline.connect(address, port, key, within_seconds=within_seconds)
    return lifeline
