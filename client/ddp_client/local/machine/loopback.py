"""Addresses and ports on loopback, which all pods share: each has an address of its own there."""

import random
import socket
from ipaddress import IPv4Address
from pathlib import Path

from ddp_operator.ports import Key

ADDRESS = "127.0.0.1"
_LOWEST_PORT = 10_000
_TRIES = 1000


class LoopbackAddresses:
    """One address for each host name of a job, such as 127.0.0.2; Linux accepts all of them.

    The name stands for rank 0's pod, even before that is created or while it is replaced.
    """

    def __init__(self) -> None:
        self._addresses: dict[tuple[Key, str], str] = {}

    def of(self, job: Key, host: str) -> str:
        """Return the address of a pod, by its host name without a domain."""
        number = int(IPv4Address(ADDRESS)) + len(self._addresses) + 1
        return self._addresses.setdefault((job, host), str(IPv4Address(number)))


class LoopbackPorts:
    """One port for the rendezvous of each attempt of a job, and one for the status of each pod.

    All pods of an attempt use the same rendezvous port, including replacements. No other attempt
    gets it, so that a leftover process meets nobody.
    """

    def __init__(self) -> None:
        self._ports: dict[tuple[Key, str], int] = {}

    def rendezvous(self, job: Key, *, attempt: str) -> int:
        """Return the attempt's port. The first call chooses a free one.

        Raises:
            OSError: no port is free.
        """
        return self._of((job, attempt))

    def status(self, pod: Key, *, like: int | None = None) -> int:
        """Return the pod's port. The first call chooses a free one, preferably `like`.

        Raises:
            OSError: no port is free.
        """
        if like is not None and (pod, "status") not in self._ports and self._may_be(like):
            self._ports[pod, "status"] = like
        return self._of((pod, "status"))

    def _of(self, purpose: tuple[Key, str]) -> int:
        if purpose not in self._ports:
            self._ports[purpose] = self._choose()
        return self._ports[purpose]

    def _may_be(self, port: int) -> bool:
        return port < _ephemeral_start() and port not in self._ports.values() and _is_free(port)

    def _choose(self) -> int:
        # Below the kernel's own range. Otherwise an outgoing connection, for example between ranks,
        # could take the port while rank 0 is being replaced.
        highest = max(_ephemeral_start() - 1, _LOWEST_PORT + _TRIES)
        for _ in range(_TRIES):
            port = random.randint(_LOWEST_PORT, highest)
            if port not in self._ports.values() and _is_free(port):
                return port
        raise OSError(f"no free port on {ADDRESS} after {_TRIES} tries")


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768  # Linux's default


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True
