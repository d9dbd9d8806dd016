"""The processes of one pod: started together, watched together, ended together.

Everything happens in one thread that waits for signals, death of a child being one of them: there
is nothing to race with.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddp_trainer.exit_codes import of_signal
from ddp_trainer.launcher.forkserver import STARTED_SIGNAL
from ddp_trainer.launcher.starters import Starter
from ddp_trainer.launcher.verdict import RankEnd, RestartBudget, settled
from ddp_trainer.system.activity import read_activity
from ddp_trainer.system.deathsignal import adopt_orphans
from ddp_trainer.system.standstill import FrozenWatch
from ddp_trainer.telemetry.termination import (
    open_report_file,
    read_pulse,
    read_report_file,
    read_timeout,
)

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_WATCHED = _STOP_SIGNALS | {signal.SIGCHLD, STARTED_SIGNAL}
_LOG_EVERY_SECONDS = 10.0
_START_SECONDS = 300.0
"""More than a loaded machine takes to import torch from a cold disk."""
_LOOKS_PER_TIMEOUT = 4
_BUSY_TIMEOUTS = 12
"""For how many times the timeout a rank may compute without a pulse: two minutes by default, for a
long call that keeps Python's lock or a machine that swaps, and a part of the time for which the
other ranks wait for it."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _RankProcess:
    rank: int
    report_fd: int


class Supervisor:
    """Starts the ranks of a pod and sees them through to their end.

    While it exists, SIGTERM, SIGINT and SIGCHLD are blocked in this thread and in those that it
    starts from here on, and handled here.
    """

    def __init__(
        self,
        starter: Starter,
        budget: RestartBudget,
        *,
        kill_after_seconds: float,
        silence_seconds: float,
        can_come_back: Callable[[RankEnd], bool] = lambda _: True,
        script_has_finished: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kill_after_seconds`: how long ranks may take to end when one of them has failed.

        `silence_seconds`: how long a rank may give no sign of life before it is killed; 0: for
        ever, or as long as a script says whose ranks have joined. A pulse is one; that it computes
        is another one, but not without any end.
        `can_come_back`: whether another process may take the place of a rank that ended so.
        `script_has_finished`: whether a script said, for all ranks, that nothing is left to do;
        ranks of the bundled trainer each say so in their report.
        """
        self._starter = starter
        self._budget = budget
        self._kill_after_seconds = kill_after_seconds
        self._silence_seconds = silence_seconds
        self._can_come_back = can_come_back
        self._script_has_finished = script_has_finished
        self._before_their_pulse = silence_seconds > 0
        """Whether ranks are watched before they have a pulse: a script's may never have one."""
        self._watch: FrozenWatch | None = None
        self._busy: list[int] = []
        """Process IDs of the ranks that were found too busy for a pulse by the last look."""
        self._variables: Mapping[int, Mapping[str, str]] = {}
        self._starting: dict[int, int] = {}
        self._start_by = math.inf
        self._running: dict[int, _RankProcess] = {}
        self._restarts = 0
        self._ending = False
        """Whether a rank has failed for good, and the others have to follow."""
        self.told_to_stop = False
        """Whether this pod, and not just its ranks, got SIGTERM or SIGINT."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        adopt_orphans()

    def run(self, variables: Mapping[int, Mapping[str, str]]) -> list[RankEnd]:
        """Run a rank for each key of `variables` until all have ended; in the order of their ends.

        When one fails it is started again as long as the budget lasts; beyond that, the others are
        told to stop, and killed if they do not.

        Raises:
            OSError: a rank cannot be started.
        """
        self._variables = variables
        ends: list[RankEnd] = []
        kill_at: float | None = None
        try:
            for rank in variables:
                self._start(rank)
            while self._running or self._starting:
                self._wait(until=kill_at)
                for end in self._reap():
                    if self._start_again(end):
                        continue
                    ends.append(end)
                    if end.exit_code != 0 and not self._ending:
                        self._ending = True
                        kill_at = time.monotonic() + self._kill_after_seconds
                        self._signal_all(signal.SIGTERM)
                if (
                    kill_at is not None
                    and time.monotonic() >= kill_at
                    and (self._running or self._starting)
                ):
                    _logger.warning(
                        "ranks still run after %.0f s: killing them", self._kill_after_seconds
                    )
                    self._signal_all(signal.SIGKILL)
                    kill_at = None
                self._kill_the_frozen()
                if self._starting and time.monotonic() > self._start_by:
                    _logger.warning("a rank has not started in %.0f s: trying anew", _START_SECONDS)
                    self._start_by = math.inf
                    self._starter.send_signal(signal.SIGKILL)
        finally:
            self._signal_all(signal.SIGKILL)  # only after an error: else nobody is left
        return ends

    @property
    def rank_restarts(self) -> int:
        """Ranks that were started again."""
        return self._restarts

    def rank_processes(self) -> Mapping[int, int]:
        """Process IDs by rank, of those that run; safe to call from another thread."""
        return {process.rank: pid for pid, process in self._running.copy().items()}

    def _start(self, rank: int) -> None:
        report_fd = open_report_file()
        self._starting[rank] = report_fd
        self._start_by = time.monotonic() + _START_SECONDS
        self._starter.start(rank, self._variables[rank], report_fd=report_fd)
        self._take_in_the_started()

    def _start_again(self, end: RankEnd) -> bool:
        if self._ending or self.told_to_stop or not self._can_come_back(end):
            return False
        if not self._budget.allows(end, now=time.monotonic()):
            return False
        _logger.warning(
            "%s: starting it again, %s", end.cause or f"rank {end.rank} stopped", self._budget
        )
        self._restarts += 1
        self._start(end.rank)
        return True

    def _take_in_the_started(self) -> None:
        for rank, pid in self._starter.started():
            self._running[pid] = _RankProcess(rank=rank, report_fd=self._starting.pop(rank))
            if self._ending or self.told_to_stop:
                os.kill(pid, signal.SIGTERM)

    def _wait(self, *, until: float | None) -> None:
        """Wait for a child's death or a signal to stop, which is forwarded."""
        seconds = _LOG_EVERY_SECONDS
        if self._silence_seconds > 0:
            seconds = min(seconds, self._silence_seconds / _LOOKS_PER_TIMEOUT)
        if until is not None:
            seconds = max(0.0, min(seconds, until - time.monotonic()))
        arrived = signal.sigtimedwait(_WATCHED, seconds)
        self._take_in_the_started()
        if arrived is not None and arrived.si_signo in _STOP_SIGNALS:
            name = signal.Signals(arrived.si_signo).name
            _logger.info("got %s: telling the ranks to save and stop", name)
            self.told_to_stop = True
            self._signal_all(signal.SIGTERM)

    def _reap(self) -> list[RankEnd]:
        """Collect every dead child, orphans that came to us included."""
        ends: list[RankEnd] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ends
            if pid == 0:
                return ends
            self._take_in_the_started()  # told before it can die, and perhaps only just now
            code = os.waitstatus_to_exitcode(status)
            exit_code = of_signal(-code) if code < 0 else code
            if pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # whatever the rank itself had started
                ends.append(self._end(self._running.pop(pid), exit_code))
            elif self._starter.own_child_ended(pid):
                for rank, report_fd in self._starting.items():
                    process = _RankProcess(rank=rank, report_fd=report_fd)
                    ends.append(self._end(process, exit_code or 1))
                self._starting.clear()
            # Anything else was an orphan: it is reaped, and nobody waits for it.

    def _end(self, process: _RankProcess, exit_code: int) -> RankEnd:
        report = read_report_file(process.report_fd)
        os.close(process.report_fd)
        finished = report.finished is True or self._script_has_finished()
        counts = settled(exit_code, finished=finished, said=report.exit_code)
        if counts != exit_code:
            _logger.warning(
                "rank %d ended with exit code %d when it had no more to do: that counts as %d",
                process.rank,
                exit_code,
                counts,
            )
            exit_code = counts
        told = exit_code in (of_signal(signal.SIGTERM), of_signal(signal.SIGKILL))
        return RankEnd(
            rank=process.rank,
            exit_code=exit_code,
            consequence=self._ending and told,
            report=report,
        )

    def _kill_the_frozen(self) -> None:
        if self._silence_seconds <= 0:
            timeouts = (read_timeout(one.report_fd) for one in self._running.values())
            self._silence_seconds = max(timeouts, default=0.0)
        if self._silence_seconds <= 0:
            return
        if self._watch is None:
            self._watch = FrozenWatch(
                timeout_seconds=self._silence_seconds,
                longest_seconds=_BUSY_TIMEOUTS * self._silence_seconds,
                now=time.monotonic(),
            )
        pulses = {pid: read_pulse(one.report_fd) for pid, one in self._running.items()}
        if not self._before_their_pulse:
            pulses = {pid: pulse for pid, pulse in pulses.items() if pulse > 0}
        seen = self._watch.look(pulses, read_activity, now=time.monotonic())
        for pid in seen.frozen:
            if pid in seen.busy:
                what, seconds = "too busy for a pulse", _BUSY_TIMEOUTS * self._silence_seconds
            else:
                what, seconds = "frozen", self._silence_seconds
            rank = self._running[pid].rank
            _logger.warning("rank %d has been %s for %g s: killing it", rank, what, seconds)
            os.kill(pid, signal.SIGKILL)
        for pid in set(seen.busy) - {*seen.frozen, *self._busy}:
            _logger.warning(
                "rank %d is too busy for a pulse: leaving it alone for up to %g s",
                self._running[pid].rank,
                _BUSY_TIMEOUTS * self._silence_seconds,
            )
        self._busy = seen.busy

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if self._starting:  # for minutes perhaps, where torch has to be imported from a slow disk
            self._starter.send_signal(number)
