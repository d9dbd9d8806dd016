"""Runs a pod from start to end: its ranks, with one assignment after another.

A pod may have no assignment yet, or one that must wait for other pods. Then no rank runs, and the
process that forks ranks stays warm. Ranks that can form their group again read a new assignment
from a file and continue; other ranks are restarted. If ranks fail permanently and the job allows
it, the launcher asks the operator to restart the whole group in the existing pods.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_protocol.message import utc
from ddp_protocol.world import FailureReport

from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.launcher.code import PodCode
from ddp_trainer.launcher.supervisor import Supervisor, wake
from ddp_trainer.launcher.verdict import PodResult, RankEnd
from ddp_trainer.launcher.world.failure_reports import Delivery, answer_of, deliver, message_of
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.system.logs import DistinctErrors, log_to_stdout
from ddp_trainer.telemetry.status import StatusFile
from ddp_trainer.telemetry.termination import TerminationReport

SCOPE: Final = "DDP_RESTART_SCOPE"
_SCOPES: Final = ("Auto", "InPlace", "Pod", "Gang")
ANSWER_SECONDS = 120.0
"""How long a failed pod waits for a new assignment: far longer than a running operator needs, or
node rank 0 when it leads without one."""
WORD_SECONDS = 3600.0
"""How long a pod waits for the start of its group without a word from the operator, which calls
waiting pods once a minute. Far longer than an operator takes to restart or to be replaced; if it
runs but cannot reach the pods, it replaces them within a minute."""
_LONG_SECONDS = 300.0
"""Silence of the operator after which a waiting pod logs it."""
_MAX_REASON = 200
_LEAVE_SECONDS = 30.0
"""Extra time beyond the grace period for ranks that leave by themselves: for a long step."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The pod's name and restart scope, for reports of its failures."""

    pod: str
    """The pod's name."""
    scope: str
    """spec.restart.scope; empty: the operator that made the pod does not ask for news."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Standing:
        """Read the variables.

        Raises:
            ConfigurationError: a variable is malformed.
        """
        scope = env.get(SCOPE, "")
        if scope not in ("", *_SCOPES):
            raise ConfigurationError(f"{SCOPE} is {scope!r}: set it to {' or '.join(_SCOPES)}")
        return cls(pod=env.get("DDP_POD", ""), scope=scope)

    def may_ask(self, *, joined: bool) -> bool:
        """Return True if ranks that failed permanently may be restarted in this pod.

        `joined`: true if the ranks had joined, so that another process can replace them.
        """
        return bool(self.pod) and (self.scope == "InPlace" or (self.scope == "Auto" and not joined))


class Lifetime:
    """Runs the ranks for each assignment that `World` holds; in one thread."""

    def __init__(
        self,
        supervisor: Supervisor,
        world: GroupState,
        rank_environment: RankEnvironment,
        *,
        judge: Callable[[Sequence[RankEnd]], PodResult],
        assignment_file: AssignmentFile | None,
        status_file: StatusFile | None,
        of_rank_0: Mapping[str, str],
        standing: Standing | None,
        code: PodCode | None = None,
        begins: Callable[[Assignment, bool], None] = lambda *_: None,
    ) -> None:
        """`assignment_file`: for ranks that form their group themselves; None: there is none.
        `status_file`: the ranks' reports; None: they are not served.

        `of_rank_0`: extra variables for the ranks of the pod with node rank 0.
        `standing`: None: this pod cannot receive another assignment.
        `code`: None: the code of this pod cannot change.
        `begins`: called with each assignment before ranks have it, and whether none run then.
        """
        self._supervisor = supervisor
        self._world = world
        self._rank_environment = rank_environment
        self._standing = standing
        self._judge = judge
        self._assignment_file = assignment_file
        self._status_file = status_file
        self._of_rank_0 = of_rank_0
        self._code = code
        self._begins = begins
        self._current = world.assignment
        """The current assignment of this pod's ranks, or their last one."""
        self._superseded = False
        """True: the running ranks are being ended for another assignment."""
        self._held_until: float | None = None
        """When ranks start with the pod's first assignment, unless it has another one by then."""
        if rank_environment.hold_seconds:
            seconds = rank_environment.hold_seconds if standing is not None else 0
            self._held_until = time.monotonic() + seconds
        self._written_order = ""
        """The order for copies that the ranks can read."""
        self._errors = DistinctErrors(_logger, "cannot write the assignment for the ranks")

    def run(self) -> PodResult:
        """Run this pod to its end.

        Raises:
            OSError: its ranks cannot be started, or not with the code that they need.
        """
        if self._supervisor.has_joined:
            self._world.joined()
        while True:
            assignment = self._wait_for_assignment()
            if assignment is None:
                report = TerminationReport()
                return _stopped(report) if self._supervisor.told_to_stop else _abandoned()
            if not self._world.begin(assignment):
                continue
            self._begins(assignment, True)
            self._prepare(assignment)
            ranks = self._take(assignment)
            ends = self._supervisor.run(ranks, self._on_event)
            self._world.ranks_run(None)
            verdict = self._judge(ends).of_code(self._code.id if self._code is not None else "")
            if self._supervisor.told_to_stop:
                return _stopped(verdict.report) if self._left_early(ends, verdict) else verdict
            if not self._continues(ends, verdict):
                why = self._ask_for_restart(ends, verdict)
                if why is not None:
                    return verdict.noting(
                        f"not restarted in place: {why[:_MAX_REASON]}" if why else ""
                    )

    def _wait_for_assignment(self) -> Assignment | None:
        """Wait for an assignment to start ranks with; None: this pod was told to stop, or its group
        can no longer expect a start.
        """
        waits: Assignment | None = None
        is_long = False
        while not self._supervisor.told_to_stop:
            assignment = self._world.assignment
            if assignment.node_rank is not None and assignment.start:
                return assignment
            held_until = self._held_until if assignment is self._world.initial else None
            if held_until is not None and time.monotonic() >= held_until:
                _logger.info("no other assignment received: starting the ranks with the first one")
                return assignment
            if assignment is not waits:
                waits = assignment
                if assignment.node_rank is None:
                    # A pod that lacks the code fails here, where that costs the group nothing.
                    self._prepare(assignment)
                self._supervisor.warm_up()
                log_to_stdout("launcher")
                what = (
                    "for the other pods"
                    if assignment.node_rank is not None
                    else "for an assignment"
                )
                _logger.info("generation %d: waiting %s", assignment.generation, what)
            self._world.waits(is_warm=self._supervisor.is_warm)
            until = math.inf if held_until is None else held_until
            if assignment.node_rank is not None and held_until is None:
                silence = self._world.silence_seconds
                if silence >= WORD_SECONDS:
                    return None
                if silence >= _LONG_SECONDS and not is_long:
                    _logger.warning(
                        "no word from the operator for %d s; this pod ends after %d s",
                        silence,
                        WORD_SECONDS,
                    )
                is_long = silence >= _LONG_SECONDS
                until = time.monotonic() + (WORD_SECONDS if is_long else _LONG_SECONDS) - silence
            self._supervisor.idle(until=until)
        return None

    def _prepare(self, assignment: Assignment) -> None:
        """Remove the status of earlier ranks, and then replace the code; no rank runs.

        That status would look like a hang, or like one of the new code.
        """
        if assignment is not self._world.initial and self._status_file is not None:
            with contextlib.suppress(OSError):
                self._status_file.remove()
        if self._code is not None:
            self._code.use(assignment.code)

    def _take(self, assignment: Assignment) -> Mapping[int, Mapping[str, str]]:
        """Write the assignment file for the ranks, and return their variables."""
        self._current, self._superseded = assignment, False
        if assignment is not self._world.initial:
            self._write(assignment)
        return self._settle(assignment)

    def _settle(self, assignment: Assignment) -> Mapping[int, Mapping[str, str]]:
        """Log the assignment under its node rank, and return the variables of its ranks."""
        if assignment is not self._world.initial:
            log_to_stdout(f"launcher {assignment.node_rank}")
            _logger.info(
                "generation %d: node rank %d of %d",
                assignment.generation,
                assignment.node_rank,
                assignment.nodes,
            )
        by_name = self._supervisor.has_joined
        extra = self._of_rank_0 if assignment.node_rank == 0 else {}
        ranks = self._rank_environment.ranks(assignment, by_name=by_name)
        return {rank: {**variables, **extra} for rank, variables in ranks.items()}

    def _write(self, assignment: Assignment) -> bool:
        """Write the assignment for the ranks, with the present order for copies; return whether it
        could be written.
        """
        file, order = self._assignment_file, self._world.copy_order
        if file is None:
            return False
        now = replace(assignment, copy_order=order)
        if not self._errors.attempt(lambda: file.write(now)):
            return False
        self._written_order = order
        return True

    def _on_event(self) -> None:
        """Act on a new assignment while ranks run."""
        joined = self._supervisor.has_joined
        if joined:
            self._world.joined()
        assignment = self._world.assignment
        if self._superseded or self._supervisor.told_to_stop:
            return
        if assignment is self._current:
            if self._world.copy_order != self._written_order:
                self._write(assignment)
            return
        same_code = self._code is None or self._code.is_of(assignment.code)
        if not (joined and same_code and self._write(assignment)):
            _logger.info(
                "generation %d: ending the ranks of the previous generation", assignment.generation
            )
            self._superseded = True
            self._supervisor.end(within_seconds=assignment.grace_seconds)
            return
        self._current = assignment
        # They form no group with ranks of another generation, however slowly they leave.
        self._world.ranks_run(assignment.generation)
        if assignment.node_rank is None:
            _logger.info("generation %d: the ranks leave the group", assignment.generation)
            self._supervisor.leave(within_seconds=assignment.grace_seconds + _LEAVE_SECONDS)
        else:
            self._begins(assignment, False)
            self._supervisor.stay(self._settle(assignment))

    def _continues(self, ends: Sequence[RankEnd], verdict: PodResult) -> bool:
        """Return True if the pod continues after its ranks ended, with another assignment."""
        if ends and all(end.finished for end in ends):
            return False
        if self._superseded:
            return True
        if self._current.node_rank is None:
            return not any(end.finished for end in ends)
        done = verdict.exit_code in (ExitCode.DONE, ExitCode.CONFIGURATION)
        return not done and self._world.assignment.generation > self._current.generation

    def _left_early(self, ends: Sequence[RankEnd], verdict: PodResult) -> bool:
        """Return True if the ranks ended with exit code 0 although none says that it finished.

        The pod must not count as completed then: many scripts exit so when told to stop, and a
        queue gives the place of a completed pod to another job.
        """
        return verdict.exit_code == ExitCode.DONE and not any(end.finished for end in ends)

    def _ask_for_restart(self, ends: Sequence[RankEnd], verdict: PodResult) -> str | None:
        """Ask the operator to restart the group in place, if that may help.

        Returns:
            None: there is a new assignment. Otherwise why there is none; empty: it did not ask.
        """
        joined = self._supervisor.has_joined or any(end.joined for end in ends)
        if verdict.exit_code in (ExitCode.DONE, ExitCode.CONFIGURATION):
            return ""
        standing = self._standing
        if standing is None or not standing.may_ask(joined=joined):
            return ""
        _logger.warning(
            "%s: asking for a restart in place", verdict.report.headline or "the ranks have stopped"
        )
        posting = self._post(verdict, standing)
        until = time.monotonic() + ANSWER_SECONDS
        try:
            while not self._supervisor.told_to_stop:
                if self._world.assignment.generation > self._current.generation:
                    return None
                if posting.refusal:
                    return posting.refusal
                if time.monotonic() >= until:
                    return f"no answer within {ANSWER_SECONDS:g} s"
                self._supervisor.idle(until=until)
        finally:
            posting.give_up()
        return "told to stop"

    def _post(self, verdict: PodResult, standing: Standing) -> Delivery:
        assignment, placement = self._current, self._rank_environment.placement
        report = FailureReport(
            job_uid=assignment.job_uid,
            attempt=assignment.attempt,
            pod=standing.pod,
            node_rank=assignment.node_rank or 0,
            generation=assignment.generation,
            exit_code=verdict.exit_code,
            message=message_of(verdict.report),
            time=utc(time.time()),
        )
        host = assignment.master_address or assignment.master_addr
        if assignment.node_rank == 0:
            return Delivery(lambda: answer_of(self._world.note(report), report), done=wake)
        return Delivery(lambda: deliver(report, host, placement), done=wake)


def _abandoned() -> PodResult:
    """Return the verdict for a pod whose group nobody starts."""
    code = int(ExitCode.LOST_PEER)
    error = (
        f"no word from the operator for {WORD_SECONDS:g} s, while this pod waited for the start of "
        "its group: check that the operator runs and reaches the pods"
    )
    return PodResult(exit_code=code, report=TerminationReport(error=error, exit_code=code))


def _stopped(report: TerminationReport) -> PodResult:
    """Return the verdict for a pod that stops without an assignment."""
    code = int(ExitCode.STOPPED)
    return PodResult(exit_code=code, report=replace(report, exit_code=code))
