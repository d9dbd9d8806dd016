"""Decides whether to restart ranks that ended, and which failure decides for the pod.

Pure: the launcher acts on the result.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ddp_protocol.progress import TrainingReport

from ddp_trainer.exit_codes import ExitCode, of_signal
from ddp_trainer.process_group.lost_peers import tells_of_lost_peer
from ddp_trainer.telemetry.status import Status
from ddp_trainer.telemetry.termination import TerminationReport

_ONE_FAILURE_SECONDS = 10.0
"""Time in which all ranks of a node notice the same fault: drivers and libraries take a few seconds
to report a lost GPU, and Python takes as long to end."""
_MOST_REPLACED = 30
"""Far more than other ranks' losses cause in a window, unless a failure repeats without end."""
_FOR_OPERATOR = (
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.LOST_PEER,
    ExitCode.FLIPPED_BITS,
)
"""Exit codes after which another process in the same pod cannot help."""
_OF_OTHERS = (ExitCode.LOST_PEER, ExitCode.NEW_PROCESS)
"""Exit codes that other ranks' losses cause."""


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int
    """As in shells: 128 + the signal's number if a signal killed the rank."""
    consequence: bool
    """True if the launcher ended it after another rank's failure."""
    report: TerminationReport
    words: str = ""
    """Its last output."""
    script_finished: bool = False
    """The script reported, for all ranks, that everything is trained and saved."""

    @property
    def joined(self) -> bool:
        """True if it had joined the group, so that another process can replace it."""
        return self.report.finished is not None

    @property
    def finished(self) -> bool:
        """True if it reported that everything is trained and saved."""
        return self.report.finished is True or self.script_finished

    @property
    def cause(self) -> str | None:
        """Why it failed, even if the rank could not report it; None: it did not fail."""
        if self.exit_code in (ExitCode.DONE, ExitCode.STOPPED):
            return None
        if self.report.error is not None:
            return self.report.error
        if self.exit_code == 128 + signal.SIGKILL:
            return (
                f"rank {self.rank} was killed (SIGKILL): by the kernel because memory ran out, "
                "or by hand"
            )
        if self.exit_code > 128 and self.exit_code - 128 in set(signal.Signals):
            return f"rank {self.rank} died of {signal.Signals(self.exit_code - 128).name}"
        return f"rank {self.rank} ended with exit code {self.exit_code}"


def settled(exit_code: int, *, finished: bool, said: int | None = None) -> int:
    """Return the exit code that counts for a rank.

    `finished`: the rank reported that everything is trained and saved. `said`: the exit code that
    it announced. A later signal, such as SIGABRT from a library's threads, does no harm and is
    ignored. An exit code that the rank chose itself always counts.
    """
    if exit_code - of_signal(0) not in signal.valid_signals():
        return exit_code
    if finished:
        return ExitCode.DONE
    return said if said is not None else exit_code


def ended_early(rank: int, exit_code: int, report: TerminationReport) -> str | None:
    """Return why an end with exit code 0 is a failure; None: it is not.

    The other ranks need a rank that has joined them until everything is trained and saved.
    """
    if exit_code != ExitCode.DONE or report.finished is not False or report.left:
        return None
    of_all = f" of {report.total_steps}" if report.total_steps is not None else ""
    return (
        f"rank {rank} ended with exit code 0 at step {report.step or 0}{of_all}, before the "
        "training was complete: end the script after its `with ddp_trainer.join(...)` block, "
        "and with another exit code if it fails"
    )


class RestartBudget:
    """Limits how many failures a pod handles by itself within a window of time.

    Ranks that fail at the same time have one cause, such as a node's GPUs or their driver; they
    count as one failure. A rank that fails again counts again, however soon.
    """

    def __init__(self, max_restarts: int, *, window_seconds: float) -> None:
        """At most `max_restarts` in any `window_seconds`."""
        self._max_restarts = max_restarts
        self._window_seconds = window_seconds
        self._spent: deque[float] = deque()
        self._replaced: deque[float] = deque()
        """When processes ended that only other ranks' losses had made useless."""
        self._fallen: set[int] = set()
        """Ranks of the last failure."""

    def allows(self, end: RankEnd, *, now: float) -> bool:
        """Return True if this rank may be restarted, and count its failure.

        Configuration errors and ranks that waited in vain for their peers are not restarted here:
        the operator decides about them. Nor are ranks whose bits flip, which need another node.
        The losses of other ranks do not count, but have a limit of their own.
        """
        if end.exit_code in _FOR_OPERATOR:
            return False
        for times in (self._spent, self._replaced):
            while times and now - times[0] > self._window_seconds:
                times.popleft()
        if end.exit_code == ExitCode.NEW_PROCESS:
            self._replaced.append(now)
            return self._max_restarts > 0 and len(self._replaced) <= _MOST_REPLACED
        at_once = bool(self._spent) and now - self._spent[-1] <= _ONE_FAILURE_SECONDS
        if at_once and end.rank not in self._fallen:
            self._fallen.add(end.rank)
            return True
        if len(self._spent) >= self._max_restarts:
            return False
        self._spent.append(now)
        self._fallen = {end.rank}
        return True

    def __str__(self) -> str:
        return (
            f"{len(self._spent)} of at most {self._max_restarts} restarts "
            f"in {self._window_seconds:g} s"
        )


class ComesBack:
    """Tells whether another process may replace a rank: only ranks that join a group can."""

    def __init__(self, *, is_script: bool) -> None:
        """`is_script`: a user's script; it is unknown until one of its ranks has joined."""
        self.known = not is_script

    def __call__(self, end: RankEnd) -> bool:
        """Return True if another process may replace the rank that ended."""
        self.known = self.known or end.joined
        return self.known


@dataclass(frozen=True, kw_only=True)
class PodResult:
    """The result of a pod: its exit code and report."""

    exit_code: int
    report: TerminationReport
    """Report of the deciding rank: the first one that failed by itself."""

    def of_code(self, code_id: str) -> PodResult:
        """Return the result of a pod with this code; empty: unknown."""
        return replace(self, report=replace(self.report, code=code_id or None))

    def with_dumps(self, shown: bool) -> PodResult:
        """Return the verdict of a pod that may show dumps of its ranks' collectives."""
        return replace(self, report=replace(self.report, dumps=shown or None))

    def with_last_status(self, status: Status | None) -> PodResult:
        """Return the result with a script's own numbers, unless a rank has reported its step.

        A script may end before anybody has read its last status.
        """
        if status is None or self.report.step is not None:
            return self
        numbers = {field.name: getattr(status, field.name) for field in fields(TrainingReport)}
        return replace(self, report=replace(self.report, **numbers))

    def noting(self, remark: str) -> PodResult:
        """Return the verdict with a remark after the first sentence of its error."""
        if not remark:
            return self
        first, *words = (self.report.error or "the ranks have stopped").split("\n")
        error = "\n".join([f"{first}; {remark}", *words])
        return replace(self, report=replace(self.report, error=error))


def judge(ends: Sequence[RankEnd]) -> PodResult:
    """Find the primary failure among `ends`, which are in order of time."""
    lost = [end for end in ends if end.exit_code in _OF_OTHERS]
    blameless = (ExitCode.DONE, ExitCode.STOPPED, *_OF_OTHERS)
    own = [end for end in ends if end.exit_code not in blameless and not end.consequence]
    stopped = [end for end in ends if end.exit_code != ExitCode.DONE]
    if own or lost:
        return _verdict((own or lost)[0])
    return _verdict(min(stopped or ends, key=lambda end: end.rank))


def judge_script(ends: Sequence[RankEnd]) -> PodResult:
    """Find the primary failure of a user's script, where exit codes have no fixed meaning.

    The output of a rank shows whether it only lost another rank.
    """
    failures = [end for end in ends if end.exit_code != 0 and not end.consequence]
    own = [end for end in failures if not tells_of_lost_peer(end.words)]
    first = next(iter(own or failures), None)
    return _verdict(first or min(ends, key=lambda end: end.rank))


def _verdict(end: RankEnd) -> PodResult:
    error = end.cause
    printed = error is not None and end.report.error is None and bool(end.words)
    # Another process did not help either: for the operator, this is one code.
    exit_code = ExitCode.LOST_PEER if end.exit_code == ExitCode.NEW_PROCESS else end.exit_code
    report = replace(
        end.report,
        rank=end.rank,
        exit_code=exit_code,
        error=f"{error}\n{end.words}" if printed else error,
        printed=printed or None,
        finished=None,
    )
    return PodResult(exit_code=exit_code, report=report)
