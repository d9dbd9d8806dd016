"""The cause among several ends of ranks, and the restarts that a pod may make."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ddp_protocol.progress import CheckpointStatus
from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.launcher.verdict import (
    ComesBack,
    RankEnd,
    RestartBudget,
    ended_early,
    judge,
    judge_script,
    settled,
)
from ddp_trainer.telemetry.termination import TerminationReport


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
        # SIGTERM.
        ([end(1, 143), end(0, 143)], 143, 0),
        ([end(0, 75), end(1, 143)], 75, 0),
        ([end(0, 1), end(1, 75)], 1, 0),
        ([end(0, 0), end(1, 143)], 143, 1),
    ],
)
def test_first_failure_of_its_own_is_the_verdict(
    ends: list[RankEnd], exit_code: int, rank: int
) -> None:
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
def test_exit_codes_of_a_script_have_no_meaning(
    ends: list[RankEnd], exit_code: int, rank: int
) -> None:
    verdict = judge_script(ends)
    assert (verdict.exit_code, verdict.report.rank) == (exit_code, rank)


@pytest.mark.parametrize(
    ("exit_code", "finished", "left", "is_early"),
    [
        (0, False, None, True),
        (0, True, None, False),
        (0, None, None, False),  # not joined
        (0, False, True, False),  # its pod is a spare now
        (1, False, None, False),
        (143, False, None, False),
    ],
)
def test_joined_rank_may_not_exit_0_before_the_end(
    exit_code: int, finished: bool | None, left: bool | None, is_early: bool
) -> None:
    report = TerminationReport(step=7, total_steps=46, finished=finished, left=left)
    error = ended_early(3, exit_code, report)
    assert (error is not None) == is_early
    expected = "rank 3 ended with exit code 0 at step 7 of 46, before the training was complete"
    assert error is None or error.startswith(expected)


@pytest.mark.parametrize("exit_code", [134, 137, 139, 143])
def test_signal_after_the_end_counts_as_0(exit_code: int) -> None:
    assert settled(exit_code, finished=True) == 0
    assert settled(exit_code, finished=False) == exit_code
    assert settled(exit_code, finished=False, said=75) == 75


@pytest.mark.parametrize("exit_code", [0, 1, 3, 64, 75, 128, 200, 255])
def test_exit_code_counts_even_after_the_end(exit_code: int) -> None:
    assert settled(exit_code, finished=True) == exit_code
    assert settled(exit_code, finished=False, said=143) == exit_code


@pytest.mark.parametrize("exit_code", [1, 137, 139, 143])
def test_failed_ranks_restart_within_the_budget(exit_code: int) -> None:
    budget = RestartBudget(2, window_seconds=60)
    failed = end(0, exit_code)
    assert budget.allows(failed, now=100)
    assert budget.allows(failed, now=130)
    assert not budget.allows(failed, now=159)
    assert budget.allows(failed, now=161)  # the first one has expired
    assert not budget.allows(failed, now=162)


@pytest.mark.parametrize("exit_code", [0, 64, 71, 75])
def test_failures_that_a_new_process_cannot_repair_are_not_restarted(exit_code: int) -> None:
    assert not RestartBudget(2, window_seconds=60).allows(end(0, exit_code), now=100)


def test_ranks_that_fail_at_once_use_one_restart() -> None:
    budget = RestartBudget(2, window_seconds=600)
    assert all(budget.allows(end(rank, 1), now=100 + rank) for rank in range(8))
    assert str(budget) == "1 of at most 2 restarts in 600 s"
    assert all(budget.allows(end(rank, 1), now=200) for rank in range(8))
    assert str(budget) == "2 of at most 2 restarts in 600 s"
    assert not budget.allows(end(3, 1), now=205)  # it failed again
    assert not budget.allows(end(0, 1), now=300)


def test_failures_within_seconds_of_the_last_restart_are_allowed() -> None:
    budget = RestartBudget(1, window_seconds=600)
    assert budget.allows(end(0, 1), now=0)
    assert budget.allows(end(1, 1), now=9)
    assert not budget.allows(end(2, 1), now=11)


def test_without_a_budget_no_rank_restarts() -> None:
    budget = RestartBudget(0, window_seconds=600)
    assert not budget.allows(end(0, 1), now=0)
    assert not budget.allows(end(1, 1), now=0)


def test_loss_of_other_ranks_uses_no_restart_but_has_a_limit() -> None:
    budget = RestartBudget(1, window_seconds=600)
    others = end(0, ExitCode.NEW_PROCESS)
    assert all(budget.allows(others, now=now) for now in range(30))
    assert not budget.allows(others, now=31)
    assert budget.allows(end(0, 137), now=32)
    assert budget.allows(others, now=700)
    assert not RestartBudget(0, window_seconds=600).allows(others, now=0)


def test_loss_of_other_ranks_is_exit_code_75() -> None:
    others = end(1, ExitCode.NEW_PROCESS)
    assert judge([others]).exit_code == judge([others]).report.exit_code == ExitCode.LOST_PEER
    assert judge([others, end(0, 1)]).exit_code == 1


def test_a_report_fits_a_termination_message() -> None:
    checkpoint = CheckpointStatus(step=2, path="/checkpoints/x")
    report = TerminationReport(step=3, error="ä" * 10_000, checkpoint=checkpoint, finished=True)
    line = report.to_json()
    assert len(line.encode()) <= 4096
    assert TerminationReport.from_json(line) == replace(report, error="ä" * 600)


def test_script_restarts_once_one_of_its_ranks_has_joined() -> None:
    comes_back = ComesBack(is_script=True)
    joined = TerminationReport(finished=False)
    assert not comes_back(end(0, 1))
    assert comes_back(end(1, 137, report=joined))
    assert comes_back(end(1, 137)), "its successor died before it joined"
    assert ComesBack(is_script=False)(end(0, 1))


@pytest.mark.parametrize(("error", "kept"), [(None, 16), ("ValueError: after the end", 0)])
def test_last_report_has_a_few_metrics_and_none_beside_an_error(
    error: str | None, kept: int
) -> None:
    metrics = {f"a_long_name_of_a_metric/{number}": 1 / 3 for number in range(64)}
    line = TerminationReport(step=7, error=error, finished=True, metrics=metrics).to_json()
    assert len(line.encode()) < 4096
    assert len(json.loads(line).get("metrics", ())) == kept
