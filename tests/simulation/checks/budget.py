"""Rules for a job's budget, judged by what really happened."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus

from tests.simulation.checks.truth import Ledger

Require = Callable[[object, str], None]


@dataclass
class Accounts:
    """Follows one job from write to write."""

    require: Require
    ledger: Ledger
    progressed: bool | None = False
    """True if a later checkpoint is known than at the last restart that was counted; None: one of
    another training, which began again behind it.
    """
    lost: int = 0
    """How often checkpoints were lost. So many restarts stay counted in any case."""

    def judge(self, old: DDPJob, new: DDPJob) -> None:
        """Judge one change of a job's status."""
        self._note_progress(old.status, new.status)
        before, after = old.status, new.status
        counted = (after.restarts, after.disruptions) != (before.restarts, before.disruptions)
        if not counted or after.restarts < before.restarts:
            return
        if after.restarts > before.restarts:
            self._judge_budget(before, new)
        self.progressed = False

    def _note_progress(self, before: DDPJobStatus, after: DDPJobStatus) -> None:
        known = before.checkpoint.step if before.checkpoint else 0
        step = after.checkpoint.step if after.checkpoint else 0
        if step > known:
            self.progressed = True
        elif step < known:
            self.lost += 1
            self.progressed = self.progressed or None

    def _judge_budget(self, before: DDPJobStatus, after: DDPJob) -> None:
        """Require that only progress refills the budget."""
        known = before.bookkeeping.restarts_without_progress
        counted = after.status.bookkeeping.restarts_without_progress
        refilled = range(1, 2 + min(self.lost, known))
        expected = {True: refilled, False: (known + 1,), None: (*refilled, known + 1)}[
            self.progressed
        ]
        claim = f"{counted} restarts without progress, not {expected}: {self.progressed}"
        self.require(counted in expected, claim)
        granted = self.ledger.faults["Application"] + self.ledger.other_charges
        claim = f"{after.status.restarts} restarts are charged, {granted} were deserved"
        self.require(after.status.restarts <= granted, claim)
