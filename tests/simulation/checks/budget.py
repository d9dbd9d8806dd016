"""Rules for a job's budget, judged by what really happened."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus

from tests.simulation.checks.truth import Ledger

_LONG: Final = timedelta(minutes=10)
Require = Callable[[object, str], None]


@dataclass
class Accounts:
    """Follows one job from write to write."""

    require: Require
    ledger: Ledger
    farthest: int = 0
    """Latest step that was saved at a restart that was counted."""
    in_a_row: int = 0
    """Restarts for failures of their own, since then or since all pods ran for long."""

    def judge(self, old: DDPJob, new: DDPJob, *, clock_is_right: bool = True) -> None:
        """Judge one change of a job's status. `clock_is_right`: whether the operator's clock shows
        the same time as the kubelets', which tell when a pod failed.
        """
        before, after = old.status, new.status
        if (asked := after.condition("Restarting")) and asked.reason == "RestartRequested":
            self.in_a_row = 0
        if before.is_true("Suspended"):
            self.in_a_row = 0
        counted = (after.restarts, after.disruptions) != (before.restarts, before.disruptions)
        if not counted or after.restarts < before.restarts:
            return
        if after.restarts > before.restarts:
            self._judge_budget(before, new)
        if not after.failures[-1].continued:
            self._judge_pause(before, after, clock_is_right=clock_is_right)
        elif _saved(after) > self.farthest:
            self.in_a_row = 0
        self.farthest = max(self.farthest, _saved(after))

    def _judge_budget(self, before: DDPJobStatus, after: DDPJob) -> None:
        """Require that only a later step than ever before refills the budget."""
        counted = after.status.bookkeeping.restarts_without_progress
        progressed = _saved(after.status) > self.farthest
        charged = after.status.restarts - before.restarts  # launchers may have led several
        most = before.bookkeeping.restarts_without_progress + charged
        least = 1 if progressed else most
        claim = f"{counted} restarts without progress, not {least} to {most}"
        self.require(least <= counted <= (most if charged > 1 or not progressed else 1), claim)
        granted = self.ledger.faults["Application"] + self.ledger.other_charges
        claim = f"{after.status.restarts} restarts are charged, {granted} were deserved"
        self.require(after.status.restarts <= granted, claim)

    def _judge_pause(
        self, before: DDPJobStatus, after: DDPJobStatus, *, clock_is_right: bool
    ) -> None:
        """Require that free restarts of all pods without progress come less and less often."""
        failure, ran_since = after.failures[-1], before.running_since
        ran_long = ran_since is not None and failure.time - ran_since >= _LONG
        progressed = _saved(after) > self.farthest or ran_long
        self.in_a_row = 1 if progressed else self.in_a_row + 1
        own = failure.charged or failure.class_ == "Application"
        if own or failure.action != "RestartGang" or self.in_a_row == 1 or not clock_is_right:
            return
        least = min(10 * 2 ** (self.in_a_row - 2), 600)
        # The write may have taken long, and the decision was not made before the failure.
        pause = ((after.next_start_time or failure.time) - failure.time).total_seconds()
        claim = f"free restart {self.in_a_row} in a row after {pause} s, not {least} s"
        self.require(pause > least - 1, claim)


def _saved(status: DDPJobStatus) -> int:
    return status.checkpoint.step if status.checkpoint else 0
