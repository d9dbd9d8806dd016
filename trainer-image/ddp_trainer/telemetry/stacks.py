"""Shows where the ranks of a pod stand: their Python stacks, in the pod's log, on request.

The interpreter's own handler writes them, and needs nothing of the thread that hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SIGNAL = signal.SIGUSR1
_BETWEEN_RANKS_SECONDS = 0.1
"""Enough to write a stack, so that those of one rank stand together in the log."""

_logger = logging.getLogger(__name__)


def dump_on_signal() -> None:
    """From here on the signal makes this process write the stacks of all threads to stderr."""
    faulthandler.register(SIGNAL, file=sys.stderr, all_threads=True)


def listening(ranks: Mapping[int, int]) -> dict[int, int]:
    """Those of the processes, by rank, that the signal would not kill."""
    return {rank: pid for rank, pid in sorted(ranks.items()) if _catches_signal(pid)}


def ask_for_stacks(ranks: Mapping[int, int]) -> None:
    """Send the signal to processes that are `listening`, one after another."""
    for rank, pid in ranks.items():
        _logger.info("asking rank %d (process %d) for its stacks", rank, pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)
        time.sleep(_BETWEEN_RANKS_SECONDS)


def _catches_signal(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], base=16) >> (SIGNAL - 1) & 1)
