"""Which of several ends is the one to blame, and whether the pod may try again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_trainer.telemetry.status import CheckpointStatus
from ddp_trainer.termination import TerminationReport
from ddp_trainer.verdict import RankEnd, RestartBudget, judge, judge_script


def end(
    rank: int,
    exit_code: int,
    *,
    consequence: bool = False,
    report: TerminationReport | None = None,
) -> RankEnd:
    return RankEnd(
        rank=rank,
        exit_code=exit_code,
        consequence=consequence,
        report=report or TerminationReport(step=7),
    )


@pytest.mark.parametrize(
    ("ends", "exit_code", "rank"),
    [
        ([end(1, 0), end(0, 0)], 0, 0),
        # The first to report is not always the first to fail.
        ([end(0, 75), end(1, 1)], 1, 1),
        ([end(0, 75), end(1, 137)], 137, 1),
        ([end(0, 64), end(1, 1)], 64, 0),
        ([end(1, 1), end(0, 137, consequence=True)], 1, 1),
        # Other pods' ranks did not come.
        ([end(0, 75), end(1, 143, consequence=True)], 75, 0),
        ([end(0, 75), end(1, 137, consequence=True)], 75, 0),
        ([end(0, 75), end(1, 75)], 75, 0),
        ([end(0, 0), end(1, 75)], 75, 1),
        # Told to stop.
        ([end(1, 143), end(0, 143)], 143, 0),
        ([end(0, 75), end(1, 143)], 75, 0),
        ([end(0, 1), end(1, 75)], 1, 0),
        ([end(0, 0), end(1, 143)], 143, 1),
    ],
)
def test_verdict(ends: list[RankEnd], exit_code: int, rank: int) -> None:
    verdict = judge(ends)
    assert verdict.exit_code == verdict.report.exit_code == exit_code
    assert verdict.report.rank == rank
    assert verdict.report.step == 7
    assert (verdict.report.error is None) == (exit_code in (0, 143))


@pytest.mark.parametrize(
    ("ends", "exit_code", "rank"),
    [
        ([end(1, 0), end(0, 0)], 0, 0),
        ([end(1, 75), end(0, 1)], 75, 1),
        ([end(1, 3), end(0, 143, consequence=True)], 3, 1),
    ],
)
def test_a_scripts_exit_codes_are_its_own(ends: list[RankEnd], exit_code: int, rank: int) -> None:
    verdict = judge_script(ends)
    assert (verdict.exit_code, verdict.report.rank) == (exit_code, rank)


@pytest.mark.parametrize("exit_code", [1, 137, 139, 143])
def test_failed_ranks_are_started_again_within_the_budget(exit_code: int) -> None:
    budget = RestartBudget(2, window_seconds=60)
    failed = end(0, exit_code)
    assert budget.allows(failed, now=100)
    assert budget.allows(failed, now=130)
    assert not budget.allows(failed, now=159)
    assert budget.allows(failed, now=161)  # the first one counts no more
    assert not budget.allows(failed, now=162)


@pytest.mark.parametrize("exit_code", [0, 64, 75])
def test_ranks_that_cannot_do_better_are_not_started_again(exit_code: int) -> None:
    assert not RestartBudget(2, window_seconds=60).allows(end(0, exit_code), now=0)


def test_a_report_fits_a_termination_message() -> None:
    checkpoint = CheckpointStatus(step=2, path="/checkpoints/x")
    report = TerminationReport(step=3, error="ä" * 10_000, checkpoint=checkpoint, finished=True)
    line = report.to_json()
    assert len(line.encode()) <= 4096
    assert TerminationReport.from_json(line) == replace(report, error="ä" * 600)
