"""Reads a process's activity from the kernel, even if the process itself cannot respond."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_STATE, _USER_TICKS, _KERNEL_TICKS = 0, 11, 12
"""Indexes in /proc/<pid>/stat after the name: fields 3, 14 and 15 in proc(5)."""
_UNINTERRUPTIBLE = "D"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The CPU time of a process, and whether it waits in the kernel."""

    cpu_seconds: float
    """CPU time of all threads in user and kernel mode, since the process began."""
    waits_for_disk: bool
    """True: one of its threads waits in the kernel for a page, a file or a device."""


def read_activity(pid: int, proc: Path = _PROC) -> Activity | None:
    """Return the activity of a process; None: there is no such process.

    `proc`: the proc file system.
    """
    process = proc / str(pid)
    fields = _fields(process)
    if fields is None:
        return None
    ticks = int(fields[_USER_TICKS]) + int(fields[_KERNEL_TICKS])
    threads = []
    with contextlib.suppress(OSError):
        threads = [_fields(thread) for thread in process.joinpath("task").iterdir()]
    return Activity(
        cpu_seconds=ticks / _TICKS_A_SECOND,
        waits_for_disk=any(
            thread is not None and thread[_STATE] == _UNINTERRUPTIBLE for thread in threads
        ),
    )


def _fields(folder: Path) -> list[str] | None:
    """Return the fields after the name, which may contain spaces and ")"; None: it ended."""
    try:
        return folder.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
