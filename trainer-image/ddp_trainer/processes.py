"""The processes of one pod: started together, watched together, ended together.

Everything happens in one thread that waits for signals, death of a child being one of them: there
is nothing to poll and nothing to race with.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_trainer.exit_codes import of_signal
from ddp_trainer.termination import (
    REPORT_FD_VARIABLE,
    TerminationReport,
    open_report_file,
    read_report_file,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""Options of prctl(2), from linux/prctl.h."""
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_WATCHED = _STOP_SIGNALS | {signal.SIGCHLD}
_LOG_EVERY_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int
    """As a shell counts: 128 + the signal's number for a death by signal."""
    consequence: bool
    """Whether it ended because the launcher ended it after another rank's failure."""
    report: TerminationReport


class _RankProcess:
    def __init__(self, rank: int, process: subprocess.Popen[bytes], report_fd: int) -> None:
        self.rank = rank
        self.process = process
        self.report_fd = report_fd


class Supervisor:
    """Starts the ranks of a pod and sees them through to their end, as often as asked.

    While it exists, SIGTERM, SIGINT and SIGCHLD are blocked in this thread and handled here.
    """

    def __init__(self, *, kill_after_seconds: float) -> None:
        """`kill_after_seconds`: how long ranks may take to end when one of them has failed."""
        self._kill_after_seconds = kill_after_seconds
        self._running: dict[int, _RankProcess] = {}
        self.told_to_stop = False
        """Whether this pod, and not just its ranks, got SIGTERM or SIGINT."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        # Orphans come to process 1 of a container by themselves; elsewhere, by this.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(
        self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]
    ) -> list[RankEnd]:
        """Run `command` once for each rank until all have ended; in the order of their ends.

        When one fails, the others are told to stop, and killed if they do not.

        Raises:
            OSError: the command cannot be started.
        """
        ends: list[RankEnd] = []
        kill_at: float | None = None
        failed = False
        try:
            for rank, environment in environments.items():
                self._start(rank, command, environment)
            while self._running:
                self._wait(until=kill_at)
                for end in self._reap(failed=failed):
                    ends.append(end)
                    if end.exit_code != 0 and not failed:
                        failed = True
                        kill_at = time.monotonic() + self._kill_after_seconds
                        self._signal_all(signal.SIGTERM)
                if kill_at is not None and time.monotonic() >= kill_at and self._running:
                    _logger.warning(
                        "ranks still run after %.0f s: killing them", self._kill_after_seconds
                    )
                    self._signal_all(signal.SIGKILL)
                    kill_at = None
        finally:
            self._signal_all(signal.SIGKILL)  # only after an error: else nobody is left
        return ends

    def pause(self, seconds: float) -> None:
        """Wait, unless told to stop."""
        deadline = time.monotonic() + seconds
        while not self.told_to_stop and time.monotonic() < deadline:
            self._wait(until=deadline)

    def _start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        report_fd = open_report_file()
        parent = os.getpid()

        def prepare() -> None:
            # The kernel kills the rank when the launcher dies, even by SIGKILL.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(of_signal(signal.SIGKILL))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

        process = subprocess.Popen(
            command,
            env={**environment, REPORT_FD_VARIABLE: str(report_fd)},
            pass_fds=[report_fd],
            # A session of its own: Ctrl-C reaches the launcher alone, which forwards it once.
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
        )
        self._running[process.pid] = _RankProcess(rank, process, report_fd)

    def _wait(self, *, until: float | None) -> None:
        """Wait for a child's death or a signal to stop, which is forwarded."""
        seconds = _LOG_EVERY_SECONDS
        if until is not None:
            seconds = max(0.0, min(seconds, until - time.monotonic()))
        arrived = signal.sigtimedwait(_WATCHED, seconds)
        if arrived is not None and arrived.si_signo in _STOP_SIGNALS:
            name = signal.Signals(arrived.si_signo).name
            _logger.info("got %s: telling the ranks to save and stop", name)
            self.told_to_stop = True
            self._signal_all(signal.SIGTERM)
        elif arrived is None and self.told_to_stop and self._running:
            ranks = ", ".join(str(one.rank) for one in self._running.values())
            _logger.info("waiting for rank %s to save and stop", ranks)

    def _reap(self, *, failed: bool) -> list[RankEnd]:
        """Collect every dead child, orphans that came to us included."""
        ends: list[RankEnd] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ends
            if pid == 0:
                return ends
            ended = self._running.pop(pid, None)
            if ended is None:
                continue  # an orphan: it is reaped, and nobody waits for it
            code = os.waitstatus_to_exitcode(status)
            ended.process.returncode = code  # tells Popen that there is nothing left to wait for
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # whatever the rank itself had started
            report = read_report_file(ended.report_fd)
            os.close(ended.report_fd)
            exit_code = of_signal(-code) if code < 0 else code
            told = exit_code in (of_signal(signal.SIGTERM), of_signal(signal.SIGKILL))
            ends.append(
                RankEnd(
                    rank=ended.rank,
                    exit_code=exit_code,
                    consequence=failed and told,
                    report=report,
                )
            )

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
