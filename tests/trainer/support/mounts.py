"""File systems that only one process and its children see."""

from __future__ import annotations

import subprocess

from tests.skipping import skip_or_fail

_WAYS = (
    ("unshare", "--user", "--map-root-user", "--mount"),  # as anybody
    ("unshare", "--mount"),  # as root, where the kernel gives nobody users of its own
)
_TRY = ("mount", "-t", "tmpfs", "none", "/mnt")


def with_own_mounts() -> list[str]:
    """What to put before a command that may mount; skips or fails where there is no way."""
    complaints = []
    for way in _WAYS:
        run = subprocess.run([*way, *_TRY], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return list(way)
        complaints.append(run.stderr.strip())
    skip_or_fail("MOUNTS FOR A FULL DISK", OSError("; ".join(complaints)))
