"""File systems that only one process and its children see."""

from __future__ import annotations

import subprocess

from tests.skipping import skip_or_fail

_WAYS = (
    ("unshare", "--user", "--map-root-user", "--mount"),  # as any user
    ("unshare", "--mount"),  # as root, if the kernel allows no user namespaces
)
_TRY = ("mount", "-t", "tmpfs", "none", "/mnt")


def with_own_mounts() -> list[str]:
    """Return the prefix of a command that may mount; skip or fail if no way works."""
    errors = []
    for way in _WAYS:
        run = subprocess.run([*way, *_TRY], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return list(way)
        errors.append(run.stderr.strip())
    skip_or_fail("MOUNTS FOR A FULL DISK", OSError("; ".join(errors)))
