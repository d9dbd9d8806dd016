"""What a process does, as the kernel sees it: also of one that cannot say it itself."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_STATE, _USER_TICKS, _KERNEL_TICKS = 0, 11, 12
"""Places in /proc/<pid>/stat behind the name: fields 3, 14 and 15 in proc(5)."""
_UNINTERRUPTIBLE = "D"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What a process has done, and does."""

    cpu_seconds: float
    """Of all its threads, in its own code and in the kernel, since it began."""
    waits_for_disk: bool
    """Whether the kernel holds one of its threads: for a page, a file, a device."""


def read_activity(pid: int, proc: Path = _PROC) -> Activity | None:
    """What a process does; None: there is no such process.

    `proc`: where the kernel tells it.
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
    """What is behind the name, which may hold spaces and parentheses; None: it has ended."""
    try:
        return folder.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
