"""Checksums of snapshots (CRC-32): they show whether a copy was damaged in the memory of a pod.

Against foreign pods, requests and answers are signed.
"""

from __future__ import annotations

import os
import zlib

_PIECE_BYTES = 4 << 20


class DamagedCopyError(Exception):
    """A copy does not have the checksum of its snapshot; the text names the pod that holds it."""


def checksum_of(descriptor: int, *, size: int) -> int:
    """Return the checksum of the first bytes of a file.

    Raises:
        OSError: they cannot be read.
    """
    found = 0
    for offset in range(0, size, _PIECE_BYTES):
        length = min(_PIECE_BYTES, size - offset)
        found = zlib.crc32(os.pread(descriptor, length, offset), found)
    return found
