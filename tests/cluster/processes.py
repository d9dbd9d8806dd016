"""Processes that outlive the command that started them, and are never mistaken for another.

A bare process id is not an identity: the kernel hands it out again. Together with the boot and the
start time it is one, and a pidfd closes the gap between looking and killing.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Every process of a cluster carries this variable, so that one that was started but not yet
# recorded when its starter died is found all the same.
MARKER = "DDP_TEST_CLUSTER"


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessId:
    """One process for all time: ``started`` is the boot id and the start time in clock ticks."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the identity of a running process, or None when there is none (or a zombie)."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command name (field 2) may hold spaces and parentheses: count from its end.
        fields = stat[stat.rindex(")") + 2 :].split()
        if fields[0] in "ZX":
            return None
        return cls(pid, f"{_boot_id()}/{fields[19]}")

    @classmethod
    def current(cls) -> ProcessId:
        """Return the identity of the calling process."""
        own = cls.of(os.getpid())
        assert own is not None
        return own

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def command(self) -> str:
        """Return the process's command line, or nothing when it has ended."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            return ""


def spawn(
    argv: Sequence[str | Path], *, log: Path, marker: Path, env: Mapping[str, str] | None = None
) -> int:
    """Start a process in a session of its own with its output appended to ``log``; returns its id.

    Not subprocess: its Popen objects complain when they are dropped while the process runs on.
    """
    words = [str(word) for word in argv]
    program = shutil.which(words[0])
    if program is None:
        raise FileNotFoundError(words[0])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        program,
        words,
        {**os.environ, **(env or {}), MARKER: str(marker)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Python ignores SIGPIPE; its children should not inherit that.
        setsigdef=[signal.SIGPIPE],
    )


def marked(marker: Path) -> set[ProcessId]:
    """Find the running processes that were started with ``marker`` in their environment."""
    entry = f"{MARKER}={marker}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        identity = ProcessId.of(int(folder.name))
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if identity is not None and entry in environment:
            found.add(identity)
    return found


def stop(
    processes: Iterable[ProcessId], *, sig: signal.Signals = signal.SIGKILL, deadline_s: float = 10
) -> set[ProcessId]:
    """Signal processes and wait for their end; returns those that still run at the deadline."""
    waiting: dict[int, ProcessId] = {}
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        # The identity is compared after opening: from here on the descriptor pins the process.
        if not process.alive():
            os.close(descriptor)
            continue
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, sig)
        waiting[descriptor] = process
    end = time.monotonic() + deadline_s
    while waiting and (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select(list(waiting), [], [], left)
        for descriptor in ready:
            os.close(descriptor)
            process = waiting.pop(descriptor)
            with suppress(ChildProcessError):  # not our own child
                os.waitpid(process.pid, os.WNOHANG)
    for descriptor in waiting:
        os.close(descriptor)
    return set(waiting.values())
