"""Opens files that ranks write for the launcher. A rank may have put anything in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_regular(path: Path | str, *, dir_fd: int | None = None) -> Iterator[BinaryIO]:
    """Open a file to read, without following a link or waiting for the other end of a pipe.

    `dir_fd`: descriptor of the folder to which `path` is relative.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, dir_fd=dir_fd), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no regular file")
        yield file
