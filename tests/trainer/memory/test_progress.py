"""Snapshots report the progress of a script that does not report it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_trainer.memory.progress import StatusFileWriter
from ddp_trainer.settings.environment import Environment
from ddp_trainer.telemetry.status import Status, StatusFile

from tests.trainer.memory.pods import variables
from tests.trainer.support.pods import contract


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "status.json"


def status_in(path: Path) -> Status:
    found = StatusFile(path).read()
    assert found is not None
    return found


def test_saved_and_resumed_steps_are_reported(path: Path) -> None:
    StatusFileWriter(path).saved(5)
    first = status_in(path)
    assert first.step == 5
    assert first.last_step_time is not None
    assert first.resumed is None
    StatusFileWriter(path).resumed(3)
    second = status_in(path)
    assert second.resumed is not None
    assert (second.step, second.resumed.step) == (3, 3)
    assert second.last_step_time == first.last_step_time  # no step is completed yet
    StatusFileWriter(path).saved(6)
    assert replace(status_in(path), last_step_time=None) == replace(
        second, step=6, last_step_time=None
    )


@pytest.mark.parametrize("text", ['{"step": 2, "loss": 0.5}', "{", "[]", "\xff", ""])
def test_own_report_of_a_script_is_kept(path: Path, text: str) -> None:
    progress = StatusFileWriter(path)
    progress.saved(1)
    path.write_text(text, encoding="latin-1")
    progress.saved(2)
    progress.resumed(2)
    assert path.read_text(encoding="latin-1") == text


def test_status_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = StatusFileWriter(tmp_path / "missing" / "status.json")
    progress.saved(1)
    progress.saved(2)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("rank", "reports"), [(0, True), (1, False)])
def test_one_rank_of_the_pod_reports(path: Path, tmp_path: Path, rank: int, reports: bool) -> None:
    env = {**variables(tmp_path, rank=rank, ranks=2), "DDP_STATUS_FILE": str(path)}
    assert (StatusFileWriter.of(Environment.from_env(env), env) is not None) == reports


def test_other_pods_and_pods_without_a_status_do_not_report(path: Path) -> None:
    second = {**contract(node_rank=1, nodes=2), "RANK": "1", "LOCAL_RANK": "0"}
    assert StatusFileWriter.of(Environment.from_env(second), {"DDP_STATUS_FILE": str(path)}) is None
    first = {**contract(), "RANK": "0", "LOCAL_RANK": "0"}
    assert StatusFileWriter.of(Environment.from_env(first), {}) is None
