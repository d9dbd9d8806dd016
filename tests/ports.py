"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_LOWEST_PORT = 20_000
"""Above the ports of well-known servers."""


def free_port() -> int:
    """Return a free port that stays free until a server listens on it.

    The kernel gives other ports to outgoing connections, which would block it on a busy machine.
    """
    kernels = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.randrange(_LOWEST_PORT, max(int(kernels[0]), _LOWEST_PORT + 1000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
