"""Starts, watches and ends the processes of one pod together.

Everything happens in one thread that waits for signals, including the death of a child. So there
are no races.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.launcher.output.rank_output import Output, RankOutput
from ddp_trainer.launcher.ranks.early_check import EarlyCheck
from ddp_trainer.launcher.ranks.forkserver import STARTED_SIGNAL
from ddp_trainer.launcher.ranks.frozen import Frozen
from ddp_trainer.launcher.ranks.processes import RankProcess, dead_children
from ddp_trainer.launcher.ranks.starters import Starter
from ddp_trainer.launcher.ranks.stopping import LOOK_SECONDS, Stopping, end_group
from ddp_trainer.launcher.verdict import (
    ComesBack,
    RankEnd,
    RestartBudget,
)
from ddp_trainer.system.deathsignal import adopt_orphans
from ddp_trainer.telemetry.termination import open_report_file, read_report_file

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_WATCHED = _STOP_SIGNALS | {signal.SIGCHLD, STARTED_SIGNAL}
_LOOK_EVERY_SECONDS = 10.0
_START_SECONDS = 300.0
"""Longer than a loaded machine takes to import torch from a cold disk."""
_KILL_AGAIN_SECONDS = 10.0
"""For ranks that were still starting when the others were killed."""

_logger = logging.getLogger(__name__)


def wake() -> None:
    """Wake the supervisor of this process; for other threads."""
    os.kill(os.getpid(), STARTED_SIGNAL)


class Supervisor:
    """Starts the ranks of a pod and supervises them until they end.

    It blocks SIGTERM, SIGINT, SIGCHLD and the signal of `wake` in this thread and in threads that
    this thread starts later, and handles them itself.
    """

    def __init__(
        self,
        starter: Starter,
        output: Output,
        budget: Callable[[], RestartBudget],
        *,
        kill_after_seconds: float,
        silence_seconds: float,
        can_come_back: ComesBack,
        script_has_finished: Callable[[], bool] = lambda: False,
        checks: Sequence[EarlyCheck] = (),
    ) -> None:
        """`output`: where ranks print; it must be entered before any rank starts.

        `budget`: makes the restart budget of a new run.

        `kill_after_seconds`: how long ranks may take to end after one of them has failed.
        `silence_seconds`: see `Frozen`.
        `can_come_back`: tells whether another process may replace a rank that ended.
        `script_has_finished`: tells whether a script reported, for all ranks, that it is done;
        ranks of the bundled trainer each report it themselves.
        `checks`: look for mistakes of the script after its ranks have started.
        """
        self._starter = starter
        self._output = output
        self._new_budget = budget
        self._budget = budget()
        self._kill_after_seconds = kill_after_seconds
        self._frozen = Frozen(silence_seconds=silence_seconds)
        self._can_come_back = can_come_back
        self._script_has_finished = script_has_finished
        self._ranks: Sequence[tuple[int, Mapping[str, str]]] = []
        """Rank and variables, by local rank."""
        self._starting: dict[int, RankProcess] = {}
        """By the requested rank."""
        self._start_by = math.inf
        self._running: dict[int, RankProcess] = {}
        """By process ID."""
        self._checks = checks
        self._stopping = Stopping()
        self._left: dict[int, int] = {}
        """Exit codes by process ID, of ranks that ended while their child processes still run."""
        self._ends: dict[int, RankEnd] = {}
        """By local rank, in order of time."""
        self._restarts = 0
        self._joined = False
        self._ending = False
        """True: a rank has failed permanently or all ranks are to end; no rank is started."""
        self._leaving = False
        """True: the ranks are to end by themselves; no rank is started."""
        self._may_have_left = False
        """True: at some time the ranks were to end by themselves."""
        self._kill_at: float | None = None
        self.told_to_stop = False
        """True: the pod itself, not only its ranks, received SIGTERM or SIGINT."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        adopt_orphans()

    def run(
        self, ranks: Mapping[int, Mapping[str, str]], on_event: Callable[[], None] = lambda: None
    ) -> list[RankEnd]:
        """Run a rank for each key of `ranks`; return how they ended, in order of time.

        A rank that fails is restarted while the budget allows it. After that, the other ranks
        receive SIGTERM, and SIGKILL if they do not stop in time. `on_event` is called after each
        event; it may call `end`, `leave` and `stay`.

        Raises:
            OSError: a rank cannot be started.
        """
        self._ranks = list(ranks.items())
        self._budget = self._new_budget()
        self._ends = {}
        self._ending = self._leaving = self._may_have_left = False
        self._kill_at = None
        try:
            for local_rank in range(len(self._ranks)):
                self._start(local_rank)
            for check in self._checks:
                check.begin()
            while self._running or self._starting:
                self._wait(until=self._kill_at)
                self._look_for_mistakes()
                on_event()
                for local_rank, end in self._reap():
                    if self._start_again(local_rank, end):
                        continue
                    self._ends[local_rank] = end
                    if end.exit_code != 0 and not self._ending and not self._leaving:
                        self._ending = True
                        self._kill_at = time.monotonic() + self._kill_after_seconds
                        self._signal_all(signal.SIGTERM)
                self._kill_overdue()
                self._frozen.kill({k: v for k, v in self._running.items() if k not in self._left})
                if self._starting and time.monotonic() > self._start_by:
                    _logger.warning("a rank did not start within %.0f s: retrying", _START_SECONDS)
                    self._start_by = math.inf
                    self._starter.send_signal(signal.SIGKILL)
        finally:
            self._signal_all(signal.SIGKILL)  # has an effect only after an error
        return list(self._ends.values())

    def warm_up(self) -> None:
        """Prepare so that ranks start at once later.

        Raises:
            OSError: the process that forks ranks cannot be started.
        """
        self._starter.warm_up()

    @property
    def is_warm(self) -> bool:
        """True if ranks would start at once."""
        return self._starter.is_warm()

    def idle(self, *, until: float = math.inf) -> None:
        """Wait for an event while no rank runs, for some seconds at most."""
        self._wait(until=until)
        self._reap()

    def end(self, *, within_seconds: float) -> None:
        """Send SIGTERM to the ranks, and kill those that do not end in time.

        The process that forks ranks stays. Ranks that are still starting end once they have
        started.
        """
        self._ending = True
        self._kill_at = min(time.monotonic() + within_seconds, self._kill_at or math.inf)
        self._signal_running(signal.SIGTERM)

    def leave(self, *, within_seconds: float) -> None:
        """Wait for the ranks to end by themselves, and kill those that do not in time."""
        self._leaving = self._may_have_left = True
        self._kill_at = min(time.monotonic() + within_seconds, self._kill_at or math.inf)

    def stay(self, ranks: Mapping[int, Mapping[str, str]]) -> None:
        """Continue with new rank numbers and variables for the same processes, in their order.

        Raises:
            OSError: a rank that has left cannot be restarted.
        """
        self._ranks = list(ranks.items())
        for process in [*self._running.copy().values(), *self._starting.values()]:
            process.rank = self._ranks[process.local_rank][0]
            process.output.rename(process.rank)
        if self._leaving and not self._ending:
            self._leaving, self._kill_at = False, None
            for local_rank in [each for each, end in self._ends.items() if not end.finished]:
                del self._ends[local_rank]
                self._start(local_rank)

    @property
    def has_joined(self) -> bool:
        """True if one of the ranks has joined, so that another process can replace it."""
        self._joined = (
            self._joined
            or self._can_come_back.known
            or any(one.joined for one in self._ends.values())
            or any(
                read_report_file(one.report_fd).finished is not None
                for one in self._running.values()
            )
        )
        return self._joined

    @property
    def rank_restarts(self) -> int:
        """Number of ranks that were restarted."""
        return self._restarts

    def rank_processes(self) -> Mapping[int, int]:
        """Return the process IDs of running ranks, by rank; safe to call from other threads."""
        return {process.rank: pid for pid, process in self._running.copy().items()}

    def rank_ends(self) -> Mapping[int, int]:
        """Return the exit codes of ranks that ended for good, by rank; for other threads, too."""
        return {end.rank: end.exit_code for end in self._ends.copy().values()}

    def _start(self, local_rank: int) -> None:
        rank, variables = self._ranks[local_rank]
        report_fd, output = open_report_file(), RankOutput(self._output, rank)
        process = RankProcess(local_rank=local_rank, rank=rank, report_fd=report_fd, output=output)
        self._starting[rank] = process
        self._start_by = time.monotonic() + _START_SECONDS
        self._starter.start(rank, variables, report_fd=report_fd, streams=output.streams)
        output.streams.close()
        self._register_started()

    def _start_again(self, local_rank: int, end: RankEnd) -> bool:
        if self._ending or self._leaving or self.told_to_stop:
            return False
        if self._may_have_left and end.exit_code == ExitCode.DONE and not end.finished:
            self._start(local_rank)  # it left before it heard that it should stay
            return True
        if not self._can_come_back(end):
            return False
        if not self._budget.allows(end, now=time.monotonic()):
            return False
        _logger.warning(
            "%s: restarting it, %s", end.cause or f"rank {end.rank} stopped", self._budget
        )
        self._restarts += 1
        self._start(local_rank)
        return True

    def _register_started(self) -> None:
        for rank, pid in self._starter.started():
            self._running[pid] = self._starting.pop(rank)
            if self._ending or self.told_to_stop:
                os.kill(pid, signal.SIGTERM)

    def _wait(self, *, until: float | None) -> None:
        """Wait for a child's death or a stop signal; forward the latter."""
        seconds = _LOOK_EVERY_SECONDS
        if self._running:
            seconds = min(seconds, self._frozen.every_seconds)
        due = [check.due_in_seconds for check in self._checks]
        seconds = min([seconds, *(one for one in due if one is not None)])
        if self._stopping.is_busy:
            seconds = min(seconds, LOOK_SECONDS)
        if until is not None:
            seconds = max(0.0, min(seconds, until - time.monotonic()))
        arrived = signal.sigtimedwait(_WATCHED, seconds)
        self._register_started()
        if arrived is not None and arrived.si_signo in _STOP_SIGNALS:
            name = signal.Signals(arrived.si_signo).name
            if self._running or self._starting:
                _logger.info("got %s: telling the ranks to save and stop", name)
            self.told_to_stop = True
            self._signal_all(signal.SIGTERM)

    def _look_for_mistakes(self) -> None:
        for check in self._checks:
            if check.look(self.rank_processes(), dict(self._ranks)):
                _logger.warning("%s", check.remark)

    def _reap(self) -> list[tuple[int, RankEnd]]:
        """Reap all dead children, including adopted orphans; return the local ranks that ended."""
        ends: list[tuple[int, RankEnd]] = []
        for pid, exit_code in dead_children():
            self._register_started()  # a rank is announced before it can die, perhaps just now
            if pid in self._running:
                self._left[pid] = exit_code
            elif self._starter.own_child_ended(pid):
                lost, self._starting = self._starting, {}
                ends += [(one.local_rank, self._end(one, exit_code or 1)) for one in lost.values()]
            # Anything else was an orphan: reaping it is enough.
        self._stopping.look()
        for pid in [each for each in self._left if not self._stopping.waits_for(each)]:
            end_group(pid, signal.SIGKILL)  # processes that the rank itself started
            process = self._running.pop(pid)
            ends.append((process.local_rank, self._end(process, self._left.pop(pid))))
        return ends

    def _end(self, process: RankProcess, exit_code: int) -> RankEnd:
        return process.end(
            exit_code,
            script_has_finished=self._script_has_finished,
            ending=self._ending,
            may_end_early=self._ending or self._may_have_left or self.told_to_stop,
        )

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        if self._kill_at is None or now < self._kill_at:
            return
        if self._running or self._starting:
            _logger.warning("ranks did not stop in time: killing them")
            self._signal_running(signal.SIGKILL)
            self._kill_at = now + _KILL_AGAIN_SECONDS

    def _signal_running(self, number: signal.Signals) -> None:
        for pid in self._running:
            if number == signal.SIGTERM:
                self._stopping.tell(pid)
            else:
                end_group(pid, number)

    def _signal_all(self, number: signal.Signals) -> None:
        self._signal_running(number)
        if self._starting:  # this can last minutes while torch is imported from a slow disk
            self._starter.send_signal(number)
