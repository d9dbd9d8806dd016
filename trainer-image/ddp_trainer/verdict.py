"""What the ends of a pod's ranks mean for the pod. Pure: the launcher acts on it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.processes import RankEnd
from ddp_trainer.termination import TerminationReport


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a pod's ranks ended, taken together."""

    exit_code: int
    report: TerminationReport
    """The report of the rank that decided: the first failure that is no other rank's fault."""
    peers_left: bool
    """Whether all that happened is that ranks of other pods went away."""


def judge(ends: Sequence[RankEnd], *, told_to_stop: bool) -> Verdict:
    """Find the primary failure among `ends`, which are in the order in which they happened."""
    blameless = (ExitCode.DONE, ExitCode.LOST_PEER, ExitCode.STOPPED)
    own = [end for end in ends if end.exit_code not in blameless and not end.consequence]
    if own:
        return _verdict(own[0], peers_left=False)
    first_rank = min(ends, key=lambda end: end.rank)
    if all(end.exit_code == ExitCode.DONE for end in ends):
        return _verdict(first_rank, peers_left=False)
    lost = [end for end in ends if end.exit_code == ExitCode.LOST_PEER]
    if told_to_stop:
        return _verdict(lost[0] if lost else _stopped(ends), peers_left=False)
    # Ranks that stopped although nobody told this pod did so for the sake of another pod, which
    # is on its way out: to this pod, that is one more way to lose a peer.
    primary = lost[0] if lost else _left_alone(_stopped(ends))
    timed_out = any(end.report.rendezvous_timed_out for end in lost)
    return _verdict(primary, peers_left=not timed_out)


def judge_script(ends: Sequence[RankEnd]) -> Verdict:
    """The same for a user's own script, whose exit codes are its own affair."""
    failures = [end for end in ends if end.exit_code != 0 and not end.consequence]
    primary = failures[0] if failures else min(ends, key=lambda end: end.rank)
    return _verdict(primary, peers_left=False)


def _left_alone(end: RankEnd) -> RankEnd:
    report = replace(end.report, error="another pod was told to stop")
    return replace(end, exit_code=int(ExitCode.LOST_PEER), report=report)


def _stopped(ends: Sequence[RankEnd]) -> RankEnd:
    return min((end for end in ends if end.exit_code != ExitCode.DONE), key=lambda end: end.rank)


def _verdict(end: RankEnd, *, peers_left: bool) -> Verdict:
    report = replace(
        end.report,
        rank=end.rank,
        exit_code=end.exit_code,
        error=end.report.error or _cause(end),
        rendezvous_timed_out=None,
    )
    return Verdict(exit_code=end.exit_code, report=report, peers_left=peers_left)


def _cause(end: RankEnd) -> str | None:
    """In words, for a rank that could not say it itself."""
    if end.exit_code in (ExitCode.DONE, ExitCode.STOPPED):
        return None
    if end.exit_code == 128 + signal.SIGKILL:
        return f"rank {end.rank} was killed (SIGKILL): by the kernel for want of memory, or by hand"
    if end.exit_code > 128 and end.exit_code - 128 in set(signal.Signals):
        return f"rank {end.rank} died of {signal.Signals(end.exit_code - 128).name}"
    return f"rank {end.rank} ended with exit code {end.exit_code}"
