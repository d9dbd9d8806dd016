"""Files that cannot be written or that differ from what was written, with real faults."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from ddp_trainer.checkpoints.storage import (
    CancelledError,
    Content,
    Transfer,
    read_content,
    sync,
    sync_directory,
    write_file,
)

TEXT = b"0123456789" * 1_000_000
CONTENT = Content(size=len(TEXT), sha256=hashlib.sha256(TEXT).hexdigest())


def test_written_bytes_are_counted_and_hashed(tmp_path: Path) -> None:
    transfer = Transfer(2 * len(TEXT))
    path = tmp_path / "file"
    assert write_file(path, lambda file: file.write(TEXT), transfer) == CONTENT
    assert path.read_bytes() == TEXT
    assert transfer.fraction == 0.5
    assert read_content(path, transfer) == CONTENT
    assert transfer.fraction == 1.0


def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_file(tmp_path / "file", lambda file: file.write(TEXT), Transfer(1))
    assert caught.value.errno == errno.ENOSPC


def test_a_transfer_called_off_ends_soon(tmp_path: Path) -> None:
    transfer = Transfer(len(TEXT))
    transfer.cancel()
    with pytest.raises(CancelledError):
        write_file(tmp_path / "file", lambda file: file.write(TEXT), transfer)
    assert (tmp_path / "file").stat().st_size < len(TEXT)


def test_a_file_without_fsync_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(writing)  # a pipe cannot be synced, like files of some file systems
        sync(writing)
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):  # any other trouble is reported
        sync(writing)
    sync_directory(tmp_path)
