"""Ends a process with its parent, and lets the launcher adopt orphans: prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

from ddp_trainer.exit_codes import of_signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""Options of prctl(2), from linux/prctl.h."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent` dies, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent is already dead
        os._exit(of_signal(signal.SIGKILL))


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs; process 1 does so anyway."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
