"""Finds pods that reach another pod at localhost, which only works here.

In a cluster each pod has a localhost of its own: a script that sets MASTER_ADDR=localhost then
waits until its time-out. A server for other pods listens at all addresses, as torch's store does.
gloo's connections between pods also use 127.0.0.1 here, but its servers listen at nothing else.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCALHOST: Final = (
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
)
"""127.0.0.1, the same as an IPv6 address, and ::1, as the kernel writes them."""
_ESTABLISHED, _LISTENS = "01", "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


class Crossing(NamedTuple):
    """A connection from one pod to another."""

    client: str
    server: str
    port: int


class _Row(NamedTuple):
    """A socket, as the kernel lists it."""

    local: tuple[str, str]
    """Address and port in hexadecimal digits."""
    remote: tuple[str, str]
    state: str
    inode: str


def crossings(pods: Mapping[str, int]) -> set[Crossing]:
    """Return the connections at localhost between pods; `pods`: their first processes, by name."""
    rows = [row for table in _TABLES for row in _rows(table)]
    listeners = (row for row in rows if row.state == _LISTENS)
    servers = {row.local[1]: row.inode for row in listeners if not row.local[0].strip("0")}
    clients = [
        row
        for row in rows
        if row.state == _ESTABLISHED and row.remote[0] in _LOCALHOST and row.remote[1] in servers
    ]
    if not clients:
        return set()
    owners = dict(_owners(pods))
    result = set()
    for row in clients:
        client, server = owners.get(row.inode), owners.get(servers[row.remote[1]])
        if client and server and client != server:
            result.add(Crossing(client, server, int(row.remote[1], 16)))
    return result


def _rows(table: str) -> Iterator[_Row]:
    with suppress(OSError):  # a kernel without IPv6
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            yield _Row(_split(fields[1]), _split(fields[2]), fields[3], fields[9])


def _split(address: str) -> tuple[str, str]:
    host, _, port = address.partition(":")
    return host, port


def _owners(pods: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the sockets of the pods' processes, each with its pod."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_text(encoding="latin-1")
                parent = int(stat.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    for pod, first in pods.items():
        pending = [first]
        while pending:
            pid = pending.pop()
            pending += children.get(pid, ())
            yield from ((inode, pod) for inode in _sockets(pid))


def _sockets(pid: int) -> Sequence[str]:
    inodes = []
    with suppress(OSError):  # it has ended
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if match := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}")):
                    inodes.append(match[1])
    return inodes
