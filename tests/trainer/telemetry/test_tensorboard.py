"""Event files have the numbers of `metrics.jsonl`, also after repeated steps."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
from pathlib import Path

import pytest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.telemetry import tensorboard
from ddp_trainer.telemetry.history import FILE_NAME
from ddp_trainer.telemetry.tensorboard import FOLDER, EventFiles
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.trainer.support.pods import job


def drawn(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, as TensorBoard itself reads them."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_only_numbers_are_drawn(tmp_path: Path) -> None:
    events = EventFiles(tmp_path)
    events.rewind(0)
    events.append("training", step=1, loss=0.5, epoch=1, time="now", slowest=None)
    events.append("training", step=2, loss=math.nan)
    events.append("metrics", step=2, values={"mine/score": 3, "none": None})
    events.close()
    assert drawn(tmp_path) == {
        "training/loss": [(1, 0.5)],
        "training/epoch": [(1, 1.0)],
        "mine/score": [(2, 3.0)],
    }


@pytest.mark.parametrize("same_process", [True, False])
def test_repeated_steps_are_drawn_once(tmp_path: Path, same_process: bool) -> None:
    events = EventFiles(tmp_path)
    events.rewind(0)
    for step in range(1, 11):
        events.append("training", step=step, loss=float(step))
    events.close()
    again = events if same_process else EventFiles(tmp_path)
    again.rewind(5)
    for step in (6, 7):
        again.append("training", step=step, loss=-float(step))
    again.close()
    assert drawn(tmp_path)["training/loss"] == [
        *((step, float(step)) for step in range(1, 6)),
        *((6, -6.0), (7, -7.0)),
    ]


def test_new_group_at_the_same_step_begins_no_file(tmp_path: Path) -> None:
    events = EventFiles(tmp_path)
    for step in range(5):
        events.rewind(step)
        events.append("training", step=step + 1, loss=0.0)
    events.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_disk_that_refuses_writes_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    events = EventFiles(tmp_path / "file")  # not a folder
    for step in range(3):
        events.rewind(step)
        events.append("training", step=step, loss=0.0)
        events.close()
    assert [record.message for record in caplog.records if "cannot write" in record.message]


def test_missing_folder_and_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorboard.check(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no DDP_CHECKPOINT_DIR .* set spec.checkpoint"):
        tensorboard.check(None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"install ddp-trainer\[tensorboard\]"):
        tensorboard.check(tmp_path)


def test_events_match_the_history_after_a_killed_rank_0(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1, local_world_size=2) as wounded:
        flags = ("--tensorboard", "--log-every-steps", "1", "--step-delay-seconds", "0.1")
        [pod] = wounded.start_all(*flags, "--epochs", "2", "--batch-size", "64")
        pod.wait_for_log("step 8/")
        os.kill(pod.pids_of_ranks()[0], signal.SIGKILL)
        assert pod.wait() == 0, pod.log
        lines = (wounded.checkpoints / FILE_NAME).read_text().splitlines()
        history = [line for line in map(json.loads, lines) if line["kind"] == "training"]
        losses = drawn(wounded.checkpoints / FOLDER)["training/loss"]
        steps = [step for step, _ in losses]
        found = [line for line in history if line["step"] in steps]
        assert steps == [line["step"] for line in found]
        assert [loss for _, loss in losses] == pytest.approx([line["loss"] for line in found])
        assert len(found) >= len(history) - 1, "at most the line in progress is missing"
