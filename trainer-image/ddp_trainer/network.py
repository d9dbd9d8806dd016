"""Finds the network interface that leads to rank 0.

Left alone, gloo takes the interface that the machine's own hostname resolves to, which is loopback
on many machines: the ranks then wait for each other at 127.0.0.1.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

_SIOCGIFADDR = 0x8915
"""ioctl that asks for an interface's IPv4 address (linux/sockios.h)."""
_INTERFACE_REQUEST = struct.Struct("16s16x8x")
"""struct ifreq: a name of 16 bytes, then 24 bytes of which 4..8 come back as the address."""


def interface_towards(address: str) -> str | None:
    """Name of the interface whose address this machine uses to talk to `address` (numeric).

    None where it cannot be told, for instance inside unusual network sandboxes.
    """
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing: it only makes the kernel choose a route
        except OSError:
            return None
        source = str(probe.getsockname()[0])
    if ip_address(source).is_loopback:
        return "lo"
    return _interface_with_ipv6(source) if family == socket.AF_INET6 else _interface_with(source)


def _interface_with(source: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query, _SIOCGIFADDR, _INTERFACE_REQUEST.pack(name.encode()))
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == source:
                return name
    return None


def _interface_with_ipv6(source: str) -> str | None:
    wanted = ip_address(source).packed.hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        address, *_, name = line.split()
        if address == wanted:
            return name
    return None
