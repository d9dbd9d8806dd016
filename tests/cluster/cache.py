"""Where expensive results live: made once per machine, and never in the checkout."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
def exclusive(lock_file: Path, *, waiting_for: str) -> Iterator[None]:
    """Hold ``lock_file`` against other processes; the kernel frees it if the holder dies.

    Waits as long as another holder works, and says so once: the longest holder is a build of
    Kubernetes, which ends by itself.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process: {waiting_for}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
