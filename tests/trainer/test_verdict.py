"""Which of several ends is the one to blame, and whether the pod may try again."""

from __future__ import annotations

import pytest
from ddp_trainer.processes import RankEnd
from ddp_trainer.termination import TerminationReport
from ddp_trainer.verdict import judge, judge_script


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
    ("ends", "told_to_stop", "exit_code", "rank", "peers_left"),
    [
        ([end(1, 0), end(0, 0)], False, 0, 0, False),
        ([end(1, 0), end(0, 0)], True, 0, 0, False),
        # The first to report is not always the first to fail.
        ([end(0, 75), end(1, 1)], False, 1, 1, False),
        ([end(0, 75), end(1, 137)], False, 137, 1, False),
        ([end(0, 64), end(1, 1)], False, 64, 0, False),
        ([end(1, 1), end(0, 137, consequence=True)], False, 1, 1, False),
        # Other pods' ranks went away.
        ([end(0, 75), end(1, 143, consequence=True)], False, 75, 0, True),
        ([end(0, 75), end(1, 137, consequence=True)], False, 75, 0, True),
        ([end(0, 75), end(1, 75)], False, 75, 0, True),
        ([end(1, 143), end(0, 143)], False, 75, 0, True),
        ([end(0, 0), end(1, 75)], False, 75, 1, True),
        # Told to stop: then nothing is tried again.
        ([end(1, 143), end(0, 143)], True, 143, 0, False),
        ([end(0, 75), end(1, 143)], True, 75, 0, False),
        ([end(0, 1), end(1, 75)], True, 1, 0, False),
        ([end(0, 0), end(1, 143)], True, 143, 1, False),
    ],
)
def test_verdict(
    ends: list[RankEnd], told_to_stop: bool, exit_code: int, rank: int, peers_left: bool
) -> None:
    verdict = judge(ends, told_to_stop=told_to_stop)
    assert verdict.exit_code == verdict.report.exit_code == exit_code
    assert verdict.report.rank == rank
    assert verdict.report.step == 7
    assert verdict.peers_left == peers_left
    assert (verdict.report.error is None) == (exit_code in (0, 143))


def test_peers_that_never_came_are_not_waited_for_again() -> None:
    report = TerminationReport(error="gave up", rendezvous_timed_out=True)
    verdict = judge([end(0, 75, report=report)], told_to_stop=False)
    assert verdict.exit_code == 75
    assert not verdict.peers_left
    assert "rendezvous" not in verdict.report.to_json()


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
    assert (verdict.exit_code, verdict.report.rank, verdict.peers_left) == (exit_code, rank, False)


def test_a_report_fits_a_termination_message() -> None:
    report = TerminationReport(step=3, error="ä" * 10_000, checkpoint="/checkpoints/x")
    line = report.to_json()
    assert len(line.encode()) <= 4096
    assert TerminationReport.from_json(line).step == 3
