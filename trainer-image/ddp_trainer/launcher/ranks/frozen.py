"""Finds frozen ranks of a pod and kills them."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Collection, Mapping

from ddp_trainer.launcher.ranks.processes import RankProcess
from ddp_trainer.system.activity import read_activity
from ddp_trainer.system.liveness import FrozenWatch
from ddp_trainer.telemetry.termination import read_pulse, read_timeout

_LOOKS_PER_TIMEOUT = 4
_BUSY_TIMEOUTS = 12
"""How many timeouts a rank may compute without a pulse: two minutes by default. That allows a long
call that holds Python's lock, or a machine that swaps. It is less than the other ranks wait."""

_logger = logging.getLogger(__name__)


class Frozen:
    """Kills ranks that show no sign of life for too long."""

    def __init__(self, *, silence_seconds: float) -> None:
        """`silence_seconds`: how long a rank may show no sign of life before it is killed.

        0: no limit, unless the ranks of a script set one when they join. A sign of life is a pulse,
        or CPU time, which counts only for a limited time.
        """
        self._silence_seconds = silence_seconds
        self._before_their_pulse = silence_seconds > 0
        """True: also watch ranks that have no pulse yet; those of a script may never have one."""
        self._watch: FrozenWatch | None = None
        self._busy: Collection[int] = ()
        """Process IDs of the ranks that were too busy for a pulse at the last check."""

    @property
    def every_seconds(self) -> float:
        """Interval between checks."""
        return self._silence_seconds / _LOOKS_PER_TIMEOUT if self._silence_seconds > 0 else math.inf

    def kill(self, running: Mapping[int, RankProcess]) -> None:
        """Check the running ranks, given by process ID, and kill the frozen ones."""
        if self._silence_seconds <= 0:
            timeouts = (read_timeout(one.report_fd) for one in running.values())
            self._silence_seconds = max(timeouts, default=0.0)
        if self._silence_seconds <= 0:
            return
        if self._watch is None:
            self._watch = FrozenWatch(
                timeout_seconds=self._silence_seconds,
                longest_seconds=_BUSY_TIMEOUTS * self._silence_seconds,
                now=time.monotonic(),
            )
        pulses = {pid: read_pulse(one.report_fd) for pid, one in running.items()}
        if not self._before_their_pulse:
            pulses = {pid: pulse for pid, pulse in pulses.items() if pulse > 0}
        seen = self._watch.look(pulses, read_activity, now=time.monotonic())
        for pid in seen.frozen:
            if pid in seen.busy:
                what, seconds = "too busy for a pulse", _BUSY_TIMEOUTS * self._silence_seconds
            else:
                what, seconds = "frozen", self._silence_seconds
            rank = running[pid].rank
            _logger.warning("rank %d has been %s for %g s: killing it", rank, what, seconds)
            os.kill(pid, signal.SIGKILL)
        for pid in set(seen.busy) - {*seen.frozen, *self._busy}:
            _logger.warning(
                "rank %d is too busy for a pulse: waiting for up to %g s",
                running[pid].rank,
                _BUSY_TIMEOUTS * self._silence_seconds,
            )
        self._busy = seen.busy
