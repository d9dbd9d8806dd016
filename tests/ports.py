"""Ports for what tests start."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_LOWEST_PORT = 20_000
"""Above those that well-known servers listen on."""


def free_port() -> int:
    """A port that is free, and stays so for the seconds that pass until somebody listens on it.

    It is not one of those that the kernel gives to outgoing connections, of which a busy machine
    opens dozens a second: one of them would keep the port from them for as long as it lives.
    """
    kernels = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.randrange(_LOWEST_PORT, max(int(kernels[0]), _LOWEST_PORT + 1000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
