"""The life of a pod: its ranks, in one place of the group after another.

A pod may be without a place, or have one that is not to be taken before others are there: then no
rank runs, and what starts ranks stays warm. Ranks that can form their group anew hear of another
place by a file, and go on; others end, and start anew. Where ranks fail for good, the operator is
asked to have the whole group start anew in the pods that it has, if the job allows it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.launcher.supervisor import Supervisor, wake
from ddp_trainer.launcher.verdict import RankEnd, Verdict
from ddp_trainer.launcher.world.failure_reports import (
    Delivery,
    FailureReport,
    answer_of,
    deliver,
    message_of,
)
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import World
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.system.logs import DistinctErrors, log_to_stdout
from ddp_trainer.telemetry.status import StatusFile
from ddp_trainer.telemetry.termination import TerminationReport
from ddp_trainer.telemetry.wire import utc

SCOPE: Final = "DDP_RESTART_SCOPE"
_SCOPES: Final = ("Auto", "InPlace", "Pod", "Gang")
ANSWER_SECONDS = 120.0
"""How long a failed pod waits for another place: far longer than an operator takes that is there,
or than node rank 0 takes to lead where nobody is."""
_MAX_REASON = 200
_LEAVE_SECONDS = 30.0
"""What ranks that leave by themselves get beyond the grace of others: for a long step."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What this pod's failures are known by."""

    pod: str
    """Its name."""
    scope: str
    """spec.restart.scope; empty: an operator that asks for no news has made the pod."""

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
        """Whether ranks that have failed for good may be started anew in this pod.

        `joined`: whether they were of those whose place another process can take.
        """
        return bool(self.pod) and (self.scope == "InPlace" or (self.scope == "Auto" and not joined))


class Lifetime:
    """Acts on what the world is known to be; in one thread."""

    def __init__(
        self,
        supervisor: Supervisor,
        world: World,
        rank_environment: RankEnvironment,
        *,
        judge: Callable[[Sequence[RankEnd]], Verdict],
        place_file: AssignmentFile | None,
        status_file: StatusFile | None,
        of_rank_0: Mapping[str, str],
        standing: Standing | None,
    ) -> None:
        """`place_file`: for ranks that form their group by themselves; None: none are told.
        `status_file`: what ranks report; None: nobody asks.

        `of_rank_0`: variables of all ranks of the pod of node rank 0, on top of others.
        `standing`: None: this pod will not be told of another place, whatever it asks for.
        """
        self._supervisor = supervisor
        self._world = world
        self._rank_environment = rank_environment
        self._standing = standing
        self._judge = judge
        self._place_file = place_file
        self._status_file = status_file
        self._of_rank_0 = of_rank_0
        self._under = world.place
        """The place that this pod's ranks have, or the last one that they were to have."""
        self._superseded = False
        """Whether the ranks that run are being ended for another place."""
        self._held_until: float | None = None
        """When ranks start in the place that the pod was made with, unless it has another then."""
        if rank_environment.hold_seconds:
            seconds = rank_environment.hold_seconds if standing is not None else 0
            self._held_until = time.monotonic() + seconds
        self._errors = DistinctErrors(_logger, "ranks cannot be told of their place")

    def run(self) -> Verdict:
        """Run this pod to its end.

        Raises:
            OSError: its ranks cannot be started.
        """
        if self._supervisor.has_joined:
            self._world.joined()
        while True:
            place = self._wait_for_place()
            if place is None:
                return _stopped(TerminationReport())
            if not self._world.begin(place):
                continue
            ranks = self._take(place)
            ends = self._supervisor.run(ranks, self._heed)
            self._world.ranks_run(None)
            verdict = self._judge(ends)
            if self._supervisor.told_to_stop:
                return _stopped(verdict.report) if self._have_left(ends, verdict) else verdict
            if not self._goes_on(ends, verdict):
                why = self._ask_for_restart(ends, verdict)
                if why is not None:
                    return verdict.noting(
                        f"not restarted in place: {why[:_MAX_REASON]}" if why else ""
                    )

    def _wait_for_place(self) -> Assignment | None:
        """The place to start ranks in; None: this pod was told to stop."""
        waits: Assignment | None = None
        while not self._supervisor.told_to_stop:
            place = self._world.place
            if place.node_rank is not None and place.start:
                return place
            held_until = self._held_until if place is self._world.born else None
            if held_until is not None and time.monotonic() >= held_until:
                _logger.info("no word of another place: the ranks start in the first one")
                return place
            if place is not waits:
                waits = place
                self._supervisor.warm_up()
                log_to_stdout("launcher")
                what = "for the others" if place.node_rank is not None else "without a place"
                _logger.info("generation %d: waiting %s", place.generation, what)
            self._world.waits(is_warm=self._supervisor.is_warm)
            self._supervisor.idle(until=math.inf if held_until is None else held_until)
        return None

    def _take(self, place: Assignment) -> Mapping[int, Mapping[str, str]]:
        """The variables of the ranks, which may look into the file as well."""
        self._under, self._superseded = place, False
        if place is not self._world.born:
            self._write(place)
            if self._status_file is not None:
                with contextlib.suppress(OSError):
                    self._status_file.remove()  # of ranks that are gone: it would pass for a hang
        return self._settle(place)

    def _settle(self, place: Assignment) -> Mapping[int, Mapping[str, str]]:
        """Speak as the pod of this place; the variables of its ranks."""
        if place is not self._world.born:
            log_to_stdout(f"launcher {place.node_rank}")
            _logger.info(
                "generation %d: node rank %d of %d", place.generation, place.node_rank, place.nodes
            )
        by_name = self._supervisor.has_joined
        extra = self._of_rank_0 if place.node_rank == 0 else {}
        ranks = self._rank_environment.ranks(place, by_name=by_name)
        return {rank: {**variables, **extra} for rank, variables in ranks.items()}

    def _write(self, place: Assignment) -> bool:
        """Whether ranks can be told of a place."""
        file = self._place_file
        return file is not None and self._errors.attempt(lambda: file.write(place))

    def _heed(self) -> None:
        """Look around while ranks run."""
        joined = self._supervisor.has_joined
        if joined:
            self._world.joined()
        place = self._world.place
        if place is self._under or self._superseded or self._supervisor.told_to_stop:
            return
        if not (joined and self._write(place)):
            _logger.info("generation %d: ending the ranks of the one before", place.generation)
            self._superseded = True
            self._supervisor.end(within_seconds=place.grace_seconds)
            return
        self._under = place
        # They form no group with ranks of another generation, however long they take to leave.
        self._world.ranks_run(place.generation)
        if place.node_rank is None:
            _logger.info("generation %d: the ranks are to leave", place.generation)
            self._supervisor.leave(within_seconds=place.grace_seconds + _LEAVE_SECONDS)
        else:
            self._supervisor.stay(self._settle(place))

    def _goes_on(self, ends: Sequence[RankEnd], verdict: Verdict) -> bool:
        """Whether the ends of ranks are not that of the pod, whose place is another one by now."""
        if ends and all(end.finished for end in ends):
            return False
        if self._superseded:
            return True
        if self._under.node_rank is None:
            return not any(end.finished for end in ends)
        done = verdict.exit_code in (ExitCode.DONE, ExitCode.CONFIGURATION)
        return not done and self._world.place.generation > self._under.generation

    def _have_left(self, ends: Sequence[RankEnd], verdict: Verdict) -> bool:
        """Whether ranks have ended well without having finished, since they had to leave.

        The pod has not done then what it is for, and is not to pass for one that has.
        """
        left = self._under.node_rank is None and verdict.exit_code == ExitCode.DONE
        return left and not any(end.finished for end in ends)

    def _ask_for_restart(self, ends: Sequence[RankEnd], verdict: Verdict) -> str | None:
        """Ask, where that may help, to be given a place in a generation in which all start anew.

        Returns:
            Why there is none; None: there is one. Empty: it was not asked for.
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
                if self._world.place.generation > self._under.generation:
                    return None
                if posting.refusal:
                    return posting.refusal
                if time.monotonic() >= until:
                    return f"no answer within {ANSWER_SECONDS:g} s"
                self._supervisor.idle(until=until)
        finally:
            posting.give_up()
        return "told to stop"

    def _post(self, verdict: Verdict, standing: Standing) -> Delivery:
        place, placement = self._under, self._rank_environment.placement
        report = FailureReport(
            job_uid=place.job_uid,
            attempt=place.attempt,
            pod=standing.pod,
            node_rank=place.node_rank or 0,
            generation=place.generation,
            exit_code=verdict.exit_code,
            message=message_of(verdict.report),
            time=utc(time.time()),
        )
        host = place.master_address or place.master_addr
        if place.node_rank == 0:
            return Delivery(lambda: answer_of(self._world.note(report), report), done=wake)
        return Delivery(lambda: deliver(report, host, placement), done=wake)


def _stopped(report: TerminationReport) -> Verdict:
    """Of a pod without a place, which has nothing else to say."""
    code = int(ExitCode.STOPPED)
    return Verdict(exit_code=code, report=replace(report, exit_code=code))
