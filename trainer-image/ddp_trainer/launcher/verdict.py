"""What the ends of a pod's ranks mean: start again, or give up, and on whose account.

Pure: the launcher acts on it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_trainer.exit_codes import ExitCode, of_signal
from ddp_trainer.process_group.lost_peers import tells_of_lost_peer
from ddp_trainer.telemetry.termination import TerminationReport

_ONE_FAILURE_SECONDS = 10.0
"""In which all ranks of a node notice what befell it: drivers and libraries take a few seconds to
report a lost GPU, and Python as long to end."""


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int
    """As a shell counts: 128 + the signal's number for a death by signal."""
    consequence: bool
    """Whether it ended because the launcher ended it after another rank's failure."""
    report: TerminationReport
    words: str = ""
    """What it printed last."""

    @property
    def joined(self) -> bool:
        """Whether it was one whose place another process can take."""
        return self.report.finished is not None

    @property
    def finished(self) -> bool:
        """Whether it said that all is trained and saved."""
        return self.report.finished is True

    @property
    def cause(self) -> str | None:
        """Why, in words, even if the rank could not say it itself; None: as it should."""
        if self.exit_code in (ExitCode.DONE, ExitCode.STOPPED):
            return None
        if self.report.error is not None:
            return self.report.error
        if self.exit_code == 128 + signal.SIGKILL:
            return (
                f"rank {self.rank} was killed (SIGKILL): by the kernel for want of memory, "
                "or by hand"
            )
        if self.exit_code > 128 and self.exit_code - 128 in set(signal.Signals):
            return f"rank {self.rank} died of {signal.Signals(self.exit_code - 128).name}"
        return f"rank {self.rank} ended with exit code {self.exit_code}"


def settled(exit_code: int, *, finished: bool, said: int | None = None) -> int:
    """The exit code that counts for a rank, which may have said that all is trained and saved.

    Or `said` with which code it is about to end. A signal that ends it after that, such as SIGABRT
    from a library's threads, has nothing left to spoil. An exit code of its own choice still says
    what it says.
    """
    if exit_code - of_signal(0) not in signal.valid_signals():
        return exit_code
    if finished:
        return ExitCode.DONE
    return said if said is not None else exit_code


def ended_early(rank: int, exit_code: int, report: TerminationReport) -> str | None:
    """Why an end with exit code 0 is a failure, in a sentence; None: it is none.

    A rank that has joined the others is missed by them until all is trained and saved.
    """
    if exit_code != ExitCode.DONE or report.finished is not False or report.left:
        return None
    of_all = f" of {report.total_steps}" if report.total_steps is not None else ""
    return (
        f"rank {rank} ended with exit code 0 at step {report.step or 0}{of_all}, before the "
        "training was complete: let the script end after its `with ddp_trainer.join(...)` block, "
        "and with another exit code where it fails"
    )


class RestartBudget:
    """How many failures a pod gets over by itself within a window of time.

    Ranks that fall at the same time have one cause, such as a node's GPUs or their driver: they are
    one failure. A rank that falls again is another one, however soon.
    """

    def __init__(self, max_restarts: int, *, window_seconds: float) -> None:
        """At most `max_restarts` in any `window_seconds`."""
        self._max_restarts = max_restarts
        self._window_seconds = window_seconds
        self._spent: deque[float] = deque()
        self._fallen: set[int] = set()
        """The ranks of the last failure."""

    def allows(self, end: RankEnd, *, now: float) -> bool:
        """Whether to start this rank again; if so, its failure is counted.

        Wrong settings stay wrong, and a rank that has waited for its peers in vain has waited long
        enough; both are for others to decide.
        """
        if end.exit_code in (ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.LOST_PEER):
            return False
        while self._spent and now - self._spent[0] > self._window_seconds:
            self._spent.popleft()
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
    """Whether another process may take the place of a rank, which has to know how to join."""

    def __init__(self, *, is_script: bool) -> None:
        """`is_script`: a user's own, of which nobody knows before one of its ranks has joined."""
        self.known = not is_script

    def __call__(self, end: RankEnd) -> bool:
        """Of a rank that ended so."""
        self.known = self.known or end.joined
        return self.known


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a pod's ranks ended, taken together."""

    exit_code: int
    report: TerminationReport
    """The report of the rank that decided: the first failure that is no other rank's fault."""

    def noting(self, remark: str) -> Verdict:
        """Return it with a remark on the failure, behind the sentence that tells of it."""
        if not remark:
            return self
        first, *words = (self.report.error or "the ranks have stopped").split("\n")
        error = "\n".join([f"{first}; {remark}", *words])
        return replace(self, report=replace(self.report, error=error))


def judge(ends: Sequence[RankEnd]) -> Verdict:
    """Find the primary failure among `ends`, which are in the order in which they happened."""
    blameless = (ExitCode.DONE, ExitCode.LOST_PEER, ExitCode.STOPPED)
    own = [end for end in ends if end.exit_code not in blameless and not end.consequence]
    lost = [end for end in ends if end.exit_code == ExitCode.LOST_PEER]
    stopped = [end for end in ends if end.exit_code != ExitCode.DONE]
    if own or lost:
        return _verdict((own or lost)[0])
    return _verdict(min(stopped or ends, key=lambda end: end.rank))


def judge_script(ends: Sequence[RankEnd]) -> Verdict:
    """The same for a user's own script, whose exit codes are its own affair.

    What its ranks print tells which of them only lost another one.
    """
    failures = [end for end in ends if end.exit_code != 0 and not end.consequence]
    own = [end for end in failures if not tells_of_lost_peer(end.words)]
    first = next(iter(own or failures), None)
    return _verdict(first or min(ends, key=lambda end: end.rank))


def _verdict(end: RankEnd) -> Verdict:
    error = end.cause
    printed = error is not None and end.report.error is None and bool(end.words)
    report = replace(
        end.report,
        rank=end.rank,
        exit_code=end.exit_code,
        error=f"{error}\n{end.words}" if printed else error,
        printed=printed or None,
        finished=None,
    )
    return Verdict(exit_code=end.exit_code, report=report)
