"""Clients that flood a server on loopback, and the memory that it takes for them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    """Connect from a loopback address."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(address, 0))


@contextmanager
def flood(port: int, payload: bytes = b"", *, clients: int, held: int = 100) -> Iterator[None]:
    """Hold connections with a part of a request during the block.

    `clients`: addresses that they come from, of 127.0.1.0/24.
    `held`: connections. Those that the server closes are opened again at once.
    """
    stopping, flooded = threading.Event(), threading.Event()

    def begun(address: str) -> socket.socket:
        time.sleep(0.005)  # connections that overflow the queue of a server wait for a second
        connection = connect(port, address)
        connection.settimeout(0.2)
        with contextlib.suppress(OSError):
            connection.sendall(payload)
        return connection

    def run() -> None:
        addresses = [f"127.0.1.{1 + number % clients}" for number in range(held)]
        connections = [begun(address) for address in addresses]
        while not stopping.is_set():
            flooded.set()
            for number, address in enumerate(addresses):
                if not stopping.is_set() and _is_closed(connections[number]):
                    connections[number].close()
                    try:
                        connections[number] = begun(address)
                    except ConnectionRefusedError:
                        stopping.set()  # the server has ended
            stopping.wait(0.005)
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert flooded.wait(60), "not flooded"
        yield
    finally:
        stopping.set()
        thread.join()


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) in (b"", b"H")
    except BlockingIOError:
        return False
    except OSError:
        return True


def memory_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) * 1024
