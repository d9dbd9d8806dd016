"""Where expensive results live: made once per machine, and never in the checkout."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.errors import ClusterError

_LOCK_DEADLINE_S = 3600.0
"""Of waiting for a lock. The longest holder builds Kubernetes, in a quarter of an hour."""


def cache_dir(*parts: str) -> Path:
    """Return (and create) a folder below the user's cache, following the XDG base directories."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base, "ddp-operator", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str) -> None:
    """Tell a person what takes time; on standard error, as commands print results for the shell."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def exclusive(lock_file: Path, *, waiting_for: str) -> Iterator[int]:
    """Hold ``lock_file`` against other processes; the kernel frees it if the holder dies.

    Yields the lock's file descriptor: a child that inherits it also holds the lock, for as long as
    it lives. Waits while another holder works, and says so once.

    Raises ClusterError when the other holder takes an hour.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + _LOCK_DEADLINE_S
    waits = False
    with lock_file.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waits:
                    say(f"waiting for another process: {waiting_for}")
                waits = True
            if time.monotonic() > end:
                raise ClusterError(
                    f"another process has held {lock_file} for an hour ({waiting_for}); "
                    f"`fuser {lock_file}` says which"
                )
            time.sleep(0.1)
        yield handle.fileno()
