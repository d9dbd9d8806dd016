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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ddp_trainer.exit_codes import ExitCode, of_signal
from ddp_trainer.launcher.output.last_words import last_words
from ddp_trainer.launcher.output.rank_output import Output, RankOutput
from ddp_trainer.launcher.ranks.forkserver import STARTED_SIGNAL
from ddp_trainer.launcher.ranks.frozen import Frozen, RankProcess
from ddp_trainer.launcher.ranks.nested_ranks import NestedRanks
from ddp_trainer.launcher.ranks.starters import Starter
from ddp_trainer.launcher.ranks.stopping import LOOK_SECONDS, Stopping, end_group
from ddp_trainer.launcher.verdict import (
    ComesBack,
    RankEnd,
    RestartBudget,
    ended_early,
    settled,
)
from ddp_trainer.system.deathsignal import adopt_orphans
from ddp_trainer.telemetry.termination import open_report_file, read_report_file

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_WATCHED = _STOP_SIGNALS | {signal.SIGCHLD, STARTED_SIGNAL}
_UNHANDLED = frozenset({ExitCode.FAILURE, of_signal(signal.SIGABRT)})
"""How Python ends by an exception, and C++."""
_LOOK_EVERY_SECONDS = 10.0
_START_SECONDS = 300.0
"""More than a loaded machine takes to import torch from a cold disk."""
_KILL_AGAIN_SECONDS = 10.0
"""For ranks that were only being started when the others were killed."""

_logger = logging.getLogger(__name__)


def wake() -> None:
    """Have the supervisor of this process look around; for other threads."""
    os.kill(os.getpid(), STARTED_SIGNAL)


class Supervisor:
    """Starts the ranks of a pod and sees them through to their end.

    While it exists, SIGTERM, SIGINT, SIGCHLD and that of `wake` are blocked in this thread and in
    those that it starts from here on, and handled here.
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
        nested_ranks: NestedRanks | None = None,
    ) -> None:
        """`output`: where ranks print to; it must have begun before any rank is started.

        `budget`: a new one, of ranks that start from the beginning.

        `kill_after_seconds`: how long ranks may take to end when one of them has failed.
        `silence_seconds`: as `Frozen` has it.
        `can_come_back`: whether another process may take the place of a rank that ended so.
        `script_has_finished`: whether a script said, for all ranks, that nothing is left to do;
        ranks of the bundled trainer each say so in their report.
        `nested_ranks`: looks for ranks that a script starts by itself; None: nobody does.
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
        """By the rank that was asked for."""
        self._start_by = math.inf
        self._running: dict[int, RankProcess] = {}
        """By process ID."""
        self._nested_ranks = nested_ranks
        self._stopping = Stopping()
        self._left: dict[int, int] = {}
        """Exit codes by process ID, of ranks that have ended before what they have started."""
        self._ends: dict[int, RankEnd] = {}
        """By local rank, in the order in which they happened."""
        self._restarts = 0
        self._joined = False
        self._ending = False
        """Whether a rank has failed for good, or all are to start elsewhere: none is started."""
        self._leaving = False
        """Whether ranks are to end by themselves: none is started."""
        self._may_have_left = False
        """Whether ranks were to end by themselves at some time."""
        self._kill_at: float | None = None
        self.told_to_stop = False
        """Whether this pod, and not just its ranks, got SIGTERM or SIGINT."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        adopt_orphans()

    def run(
        self, ranks: Mapping[int, Mapping[str, str]], heed: Callable[[], None] = lambda: None
    ) -> list[RankEnd]:
        """Run a rank for each key of `ranks` until all have ended; in the order of their ends.

        When one fails it is started again as long as the budget lasts; beyond that, the others are
        told to stop, and killed if they do not. `heed` is called whenever something has happened,
        and may call `end`, `leave` and `stay`.

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
            if self._nested_ranks is not None:
                self._nested_ranks.begin()
            while self._running or self._starting:
                self._wait(until=self._kill_at)
                self._look_for_nested_ranks()
                heed()
                for local_rank, end in self._reap():
                    if self._start_again(local_rank, end):
                        continue
                    self._ends[local_rank] = end
                    if end.exit_code != 0 and not self._ending and not self._leaving:
                        self._ending = True
                        self._kill_at = time.monotonic() + self._kill_after_seconds
                        self._signal_all(signal.SIGTERM)
                self._kill_the_late()
                self._frozen.kill({k: v for k, v in self._running.items() if k not in self._left})
                if self._starting and time.monotonic() > self._start_by:
                    _logger.warning("a rank has not started in %.0f s: trying anew", _START_SECONDS)
                    self._start_by = math.inf
                    self._starter.send_signal(signal.SIGKILL)
        finally:
            self._signal_all(signal.SIGKILL)  # only after an error: else nobody is left
        return list(self._ends.values())

    def warm_up(self) -> None:
        """Have ranks start at once later.

        Raises:
            OSError: what starts them cannot be started itself.
        """
        self._starter.warm_up()

    @property
    def is_warm(self) -> bool:
        """Whether ranks would start at once."""
        return self._starter.is_warm()

    def idle(self, *, until: float = math.inf) -> None:
        """Without any rank: wait for something to happen, for some seconds at most."""
        self._wait(until=until)
        self._reap()

    def end(self, *, within_seconds: float) -> None:
        """Tell the ranks to end, and kill those that have not in that time.

        What starts ranks stays, and those that it is starting end as soon as they have started.
        """
        self._ending = True
        self._kill_at = min(time.monotonic() + within_seconds, self._kill_at or math.inf)
        self._signal_running(signal.SIGTERM)

    def leave(self, *, within_seconds: float) -> None:
        """Kill the ranks that have not ended by themselves in that time."""
        self._leaving = self._may_have_left = True
        self._kill_at = min(time.monotonic() + within_seconds, self._kill_at or math.inf)

    def stay(self, ranks: Mapping[int, Mapping[str, str]]) -> None:
        """Go on as these ranks, of which each is one of those before, in their order.

        Raises:
            OSError: a rank that has left cannot be started again.
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
        """Whether one of the ranks was one whose place another process can take."""
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
        """Ranks that were started again."""
        return self._restarts

    def rank_processes(self) -> Mapping[int, int]:
        """Process IDs by rank, of those that run; safe to call from another thread."""
        return {process.rank: pid for pid, process in self._running.copy().items()}

    def _start(self, local_rank: int) -> None:
        rank, variables = self._ranks[local_rank]
        report_fd, output = open_report_file(), RankOutput(self._output, rank)
        process = RankProcess(local_rank=local_rank, rank=rank, report_fd=report_fd, output=output)
        self._starting[rank] = process
        self._start_by = time.monotonic() + _START_SECONDS
        self._starter.start(rank, variables, report_fd=report_fd, streams=output.streams)
        output.streams.close()
        self._take_in_the_started()

    def _start_again(self, local_rank: int, end: RankEnd) -> bool:
        if self._ending or self._leaving or self.told_to_stop:
            return False
        if self._may_have_left and end.exit_code == ExitCode.DONE and not end.finished:
            self._start(local_rank)  # it has left before it could hear that it was to stay
            return True
        if not self._can_come_back(end):
            return False
        if not self._budget.allows(end, now=time.monotonic()):
            return False
        _logger.warning(
            "%s: starting it again, %s", end.cause or f"rank {end.rank} stopped", self._budget
        )
        self._restarts += 1
        self._start(local_rank)
        return True

    def _take_in_the_started(self) -> None:
        for rank, pid in self._starter.started():
            self._running[pid] = self._starting.pop(rank)
            if self._ending or self.told_to_stop:
                os.kill(pid, signal.SIGTERM)

    def _wait(self, *, until: float | None) -> None:
        """Wait for a child's death or a signal to stop, which is forwarded."""
        seconds = _LOOK_EVERY_SECONDS
        if self._running:
            seconds = min(seconds, self._frozen.every_seconds)
        if self._nested_ranks is not None and self._nested_ranks.due_in_seconds is not None:
            seconds = min(seconds, self._nested_ranks.due_in_seconds)
        if self._stopping.is_busy:
            seconds = min(seconds, LOOK_SECONDS)
        if until is not None:
            seconds = max(0.0, min(seconds, until - time.monotonic()))
        arrived = signal.sigtimedwait(_WATCHED, seconds)
        self._take_in_the_started()
        if arrived is not None and arrived.si_signo in _STOP_SIGNALS:
            name = signal.Signals(arrived.si_signo).name
            if self._running or self._starting:
                _logger.info("got %s: telling the ranks to save and stop", name)
            self.told_to_stop = True
            self._signal_all(signal.SIGTERM)

    def _look_for_nested_ranks(self) -> None:
        seen = self._nested_ranks
        if seen is not None and seen.look(self.rank_processes(), dict(self._ranks)):
            _logger.warning("%s", seen.remark)

    def _reap(self) -> list[tuple[int, RankEnd]]:
        """Collect every dead child, orphans that came to us included; local ranks that ended."""
        ends: list[tuple[int, RankEnd]] = []
        for pid, exit_code in _dead_children():
            self._take_in_the_started()  # told before it can die, and perhaps only just now
            if pid in self._running:
                self._left[pid] = exit_code
            elif self._starter.own_child_ended(pid):
                lost, self._starting = self._starting, {}
                ends += [(one.local_rank, self._end(one, exit_code or 1)) for one in lost.values()]
            # Anything else was an orphan: it is reaped, and nobody waits for it.
        self._stopping.look()
        for pid in [each for each in self._left if not self._stopping.waits_for(each)]:
            end_group(pid, signal.SIGKILL)  # whatever the rank itself had started
            process = self._running.pop(pid)
            ends.append((process.local_rank, self._end(process, self._left.pop(pid))))
        return ends

    def _end(self, process: RankProcess, exit_code: int) -> RankEnd:
        process.output.finish()  # before anything is said about its end
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
        if not (finished or self._ending or self._may_have_left or self.told_to_stop):
            early = ended_early(process.rank, exit_code, report)
            if early is not None:
                report, exit_code = replace(report, error=early), ExitCode.FAILURE
        told = exit_code in (of_signal(signal.SIGTERM), of_signal(signal.SIGKILL))
        return RankEnd(
            rank=process.rank,
            exit_code=exit_code,
            consequence=self._ending and told,
            report=report,
            words=self._words(process, exit_code),
        )

    def _words(self, process: RankProcess, exit_code: int) -> str:
        """What a rank printed last that may have failed."""
        if exit_code in (ExitCode.DONE, ExitCode.STOPPED):
            return ""
        return last_words(process.output.ends(), unhandled=exit_code in _UNHANDLED)

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        if self._kill_at is None or now < self._kill_at:
            return
        if self._running or self._starting:
            _logger.warning("ranks still run after their time to end: killing them")
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
        if self._starting:  # for minutes perhaps, where torch has to be imported from a slow disk
            self._starter.send_signal(number)


def _dead_children() -> Iterator[tuple[int, int]]:
    """Reap them: process ID and exit code of each."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            yield ended[0], of_signal(-code) if code < 0 else code
