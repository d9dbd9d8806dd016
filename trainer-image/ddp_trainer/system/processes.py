"""Finds child processes, and the process that listens on a port, with proc(5)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

MOST: Final = 4096
"""Limit of processes to read: more than a pod with eight GPUs and its data loaders has."""
_PROC: Final = Path("/proc")
_LOCAL, _STATE, _INODE = 1, 3, 9
"""Columns of /proc/net/tcp: local address and port, state, inode."""
_MOST_SOCKETS: Final = 65536
_LISTENS: Final = "0A"
"""TCP_LISTEN of linux/net/tcp_states.h, as written in /proc/net/tcp."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_MOST_WORDS: Final = 80


@dataclass(frozen=True)
class Process:
    """A process, with properties that do not change while it runs one program."""

    pid: int
    parent: int
    name: str
    """Name of its program; the kernel cuts it to 15 characters."""
    began: int
    """Start time in ticks since boot: tells it from another process with the same ID."""

    @property
    def is_shell(self) -> bool:
        """True if it is a shell."""
        return self.name in _SHELLS

    def handles(self, number: signal.Signals) -> bool:
        """Return True if it has a handler for a signal."""
        return handles(self.pid, number)

    def is_there(self) -> bool:
        """Return True if it still runs; a zombie does not."""
        found = read_process(self.pid)
        return found is not None and found.began == self.began

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_there():
                os.kill(self.pid, number)

    @property
    def words(self) -> str:
        """Its command line; its name if the command line is empty."""
        with contextlib.suppress(OSError):
            words = (_PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ")
            return words.decode(errors="replace").strip() or self.name
        return self.name

    def __str__(self) -> str:
        words = self.words
        shown = words if len(words) <= _MOST_WORDS else f"{words[: _MOST_WORDS - 1]}…"
        return f"process {self.pid} ({shown})"

    def has_any(self, sockets: Collection[str]) -> bool:
        """Return True if it has one of these sockets open, with names as in `tcp_sockets`."""
        with contextlib.suppress(OSError):
            files = (_PROC / str(self.pid) / "fd").iterdir()
            return any(os.readlink(file) in sockets for file in files)
        return False

    def environment(self) -> dict[str, str]:
        """Return the environment that it was started with."""
        with contextlib.suppress(OSError):
            text = (_PROC / str(self.pid) / "environ").read_bytes().decode(errors="replace")
            return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        return {}


def handles(pid: int, number: int) -> bool:
    """Return True if a process has a handler for a signal."""
    for line in _lines(_PROC / str(pid) / "status"):
        field, _, mask = line.partition(":")
        if field == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def state(pid: int) -> str:
    """Return the letter of a process's state, such as T for stopped; empty: it has ended."""
    with contextlib.suppress(OSError):
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0]
    return ""


def all_children() -> dict[int, list[Process]]:
    """Return the processes of this container, by the process ID of their parent."""
    children: dict[int, list[Process]] = {}
    for pid in _pids():
        if (found := read_process(pid)) is not None:
            children.setdefault(found.parent, []).append(found)
    return children


def below(root: int) -> dict[int, list[Process]]:
    """Return all descendants of a process, by the process ID of their parent."""
    children = all_children()
    tree: dict[int, list[Process]] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in children:
            tree[pid] = children.pop(pid)
            waiting += [child.pid for child in tree[pid]]
    return tree


@dataclass(frozen=True)
class TcpSocket:
    """A TCP socket as the kernel lists it; addresses and state in its hexadecimal digits."""

    here: str
    port_here: int
    there: str
    port_there: int
    state: str
    inode: str


def tcp_table() -> list[TcpSocket]:
    """Return the TCP sockets of this pod's network."""
    return [
        TcpSocket(*_address(fields[_LOCAL]), *_address(fields[2]), fields[_STATE], fields[_INODE])
        for table in ("tcp", "tcp6")
        for fields in islice(map(str.split, _lines(_PROC / "net" / table)), 1, _MOST_SOCKETS)
        if len(fields) > _INODE
    ]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port, 16)


def sockets_of(process: Process) -> Iterator[str]:
    """Yield the inodes of the sockets that a process has open."""
    with contextlib.suppress(OSError):
        for file in (_PROC / str(process.pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(file).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


def tcp_sockets(*, listening_on: int | None = None) -> set[str]:
    """Return the TCP sockets of this pod's network; `listening_on`: only listeners on this port."""
    return {
        f"socket:[{fields[_INODE]}]"
        for table in ("tcp", "tcp6")
        for fields in map(str.split, _lines(_PROC / "net" / table))
        if len(fields) > _INODE
        and (
            listening_on is None
            or (
                fields[_STATE] == _LISTENS
                and fields[_LOCAL].rpartition(":")[2] == f"{listening_on:04X}"
            )
        )
    }


def listener(port: int) -> Process | None:
    """Return the process that listens on a TCP port; None: none that this process can see."""
    sockets = tcp_sockets(listening_on=port)
    found = (read_process(pid) for pid in (_pids() if sockets else ()))
    return next((one for one in found if one is not None and one.has_any(sockets)), None)


def _pids() -> Sequence[int]:
    found = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
    return found[:MOST]


def read_process(pid: int) -> Process | None:
    """Return a running process; None: there is none with this ID."""
    with contextlib.suppress(OSError):
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        # The name may contain spaces and parentheses.
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if fields[0] not in "ZX":
            return Process(pid, int(fields[1]), name, int(fields[19]))
    return None


def _lines(file: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from file.read_text(errors="replace").splitlines()
