"""Finds rank 0's address by its name, and the network interface that leads there.

By default, gloo uses the interface that the machine's own hostname resolves to. On many machines
that is loopback, and the ranks then wait for each other at 127.0.0.1.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import MutableMapping
from concurrent.futures import Future
from ipaddress import ip_address
from pathlib import Path

from ddp_trainer.process_group.rendezvous.retry import NotYetError

_ANSWER_SECONDS = 1.0
_CONNECT_SECONDS = 0.3
"""Far more than a round trip within a cluster. Short, because the address of a dead pod never
answers, and no other address is tried meanwhile.
"""
_SIOCGIFADDR = 0x8915
"""ioctl that returns an interface's IPv4 address (linux/sockios.h)."""
_INTERFACE_REQUEST = struct.Struct("16s16x8x")
"""struct ifreq: a name of 16 bytes, then 24 bytes; bytes 4 to 8 of these return the address."""
_RESOLVER_OPTIONS = "timeout:1 attempts:3"
"""Retry each second instead of every five (resolv.conf(5))."""


def hurry_the_resolver(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a lost DNS query cost one second; call it before any query in this process.

    torch's store looks up the name of each client in its only thread, and each client that of the
    store. While an answer is missing, the whole job is blocked. A value set by the user is kept.
    """
    environment.setdefault("RES_OPTIONS", _RESOLVER_OPTIONS)


class Resolver:
    """Resolves names in threads, because a query that gets no answer blocks for a minute."""

    def __init__(self) -> None:
        self._asked: dict[str, Future[list[str]]] = {}

    def resolve(self, name: str, port: int) -> list[str]:
        """Return the addresses of a name of rank 0's pod.

        Raises:
            NotYetError: the name has no address yet, or DNS has not answered; the next call
                continues to wait for that answer.
        """
        answer = self._asked.pop(name, None) or _ask(name, port)
        try:
            return answer.result(_ANSWER_SECONDS)
        except TimeoutError:
            self._asked[name] = answer
            why = "no answer from DNS"
        except socket.gaierror as error:
            why = error.strerror or str(error)
        raise NotYetError(f"MASTER_ADDR {name} does not resolve yet ({why})")


def _ask(name: str, port: int) -> Future[list[str]]:
    answer: Future[list[str]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            answer.set_result([str(address[0]) for *_, address in found])
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="ddp: resolves host names", daemon=True).start()
    return answer


def expect_answer(name: str, address: str, port: int) -> None:
    """Check that a process listens at an address of `name`.

    Raises:
        NotYetError: none does.
    """
    try:
        socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise NotYetError(
            f"rank 0 does not answer at {name} ({address}) port {port}: {error}"
        ) from error


def interface_towards(address: str) -> str | None:
    """Return the interface that this machine uses to reach `address` (numeric).

    None if that is unknown, for example in unusual network sandboxes.
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
