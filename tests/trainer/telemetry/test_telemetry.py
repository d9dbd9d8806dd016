"""Reports of a training, without its processes."""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from ddp_protocol.message import from_json, to_json, utc_to_the_millisecond
from ddp_protocol.progress import CheckpointStatus, PaceStatus, Resumption
from ddp_trainer.telemetry.bar import ProgressBar, draw
from ddp_trainer.telemetry.histogram import BOUNDS, Histogram
from ddp_trainer.telemetry.history import History
from ddp_trainer.telemetry.prometheus import render
from ddp_trainer.telemetry.publisher import Publisher
from ddp_trainer.telemetry.status import Measurements, Status, StatusFile, status_file
from ddp_trainer.telemetry.stragglers import IN_A_ROW, Pace, StragglerWatch
from ddp_trainer.telemetry.timing import DeviceTimer, Phase, StepTimer

from tests.trainer.support.exposition import parse

CONTRACT = {
    "step": 120,
    "lastStepTime": "2026-11-21T03:00:10.250Z",
    "totalSteps": 960,
    "epoch": 2,
    "loss": 0.12,
    "samplesPerSecond": 8123.0,
    "slowestRank": 3,
    "checkpoint": {"step": 100, "path": "/checkpoints/s", "time": "2026-11-21T03:00:00Z"},
}
MEASURED = Measurements(
    step_seconds=12.5,
    step_counts=(0, 1, 2, *[0] * (len(BOUNDS) - 3), 4),
    phase_seconds={"data": 1.0, "compute": 2.5},
    reforms=2,
    reform_seconds=0.75,
    straggler_ratio=1.75,
)


def test_status_survives_json() -> None:
    status = from_json(Status, json.dumps(CONTRACT | {"unknown": [1]}))
    assert status.total_steps == 960
    assert status.checkpoint is not None
    assert status.checkpoint.time == "2026-11-21T03:00:00Z"
    assert json.loads(to_json(status)) == CONTRACT
    measured = Status(step=7, measurements=MEASURED)
    assert from_json(Status, to_json(measured)) == measured
    assert from_json(Status, '{"step": 0, "epoch": null}') == Status(step=0)
    diverged = json.loads(to_json(Status(step=7, loss=math.nan)))
    assert diverged == {"step": 7}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("", "Expecting value"),
        ("[1]", "the document must be a JSON object"),
        ("{}", "step is missing"),
        ('{"step": 7, "lastStepTime": 1795230010}', "lastStepTime must be a string"),
        ('{"step": "7"}', "step must be a whole number from 0 to 9007199254740991, not '7'"),
        ('{"step": -1}', "step must be a whole number"),
        ('{"step": true}', "step must be a whole number"),
        ('{"step": 7.5}', "step must be a whole number"),
        ('{"step": 7, "loss": "low"}', "loss must be a number"),
        ('{"step": 7, "checkpoint": 5}', "checkpoint must be a JSON object"),
        ('{"step": 7, "checkpoint": {}}', "step is missing"),
        ('{"step": 7, "checkpoint": {"step": 5, "path": 1}}', "path must be a string"),
    ],
)
def test_invalid_status_is_refused(document: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        from_json(Status, document)


def test_status_file_has_the_last_status(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    file = StatusFile.from_env({"DDP_STATUS_FILE": str(path)})
    assert StatusFile.from_env({}) is None
    assert file is not None
    assert file.read() is None
    file.write(Status(step=1))
    file.write(Status(step=2))
    assert file.read() == Status(step=2)
    assert list(tmp_path.iterdir()) == [path]
    path.write_text(json.dumps({"step": 1, "note": "x" * 70_000}))
    with pytest.raises(ValueError, match="longer than 65536 bytes"):
        file.read()


def test_metrics_of_a_complete_status() -> None:
    status = from_json(Status, json.dumps(CONTRACT))
    bare = parse(render(status, rank_restarts=3))
    assert bare == {
        "ddp_rank_restarts_total": 3,
        "ddp_step": 120,
        "ddp_last_step_timestamp_seconds": 1795230010.25,
        "ddp_total_steps": 960,
        "ddp_epoch": 2,
        "ddp_loss": 0.12,
        "ddp_samples_per_second": 8123,
        "ddp_slowest_rank": 3,
        "ddp_checkpoint_step": 100,
        "ddp_checkpoint_timestamp_seconds": 1795230000,
    }
    full = parse(
        render(
            Status(step=120, slowest_rank=3, measurements=MEASURED),
            rank_restarts=0,
        )
    )
    bucket = "ddp_step_duration_seconds_bucket"
    assert full[f'{bucket}{{le="{BOUNDS[0]}"}}'] == 0
    assert full[f'{bucket}{{le="{BOUNDS[1]}"}}'] == 1
    assert full[f'{bucket}{{le="{BOUNDS[2]}"}}'] == 3
    assert full[f'{bucket}{{le="{BOUNDS[-1]}"}}'] == 3
    assert full[f'{bucket}{{le="+Inf"}}'] == 7
    assert full["ddp_step_duration_seconds_sum"] == 12.5
    assert full['ddp_phase_seconds_total{phase="compute"}'] == 2.5
    assert full["ddp_reforms_total"] == 2
    assert full["ddp_reform_seconds_total"] == 0.75
    assert full['ddp_straggler_ratio{rank="3"}'] == 1.75
    foreign = replace(MEASURED, step_counts=(1, 2))
    fewer = parse(render(Status(step=120, measurements=foreign), rank_restarts=0))
    assert "ddp_step_duration_seconds_count" not in fewer
    assert fewer["ddp_reforms_total"] == 2
    assert parse(render(None, rank_restarts=0)) == {"ddp_rank_restarts_total": 0}


def test_invalid_time_is_left_out() -> None:
    status = Status(step=1, checkpoint=CheckpointStatus(step=1, time="yesterday"))
    values = parse(render(status, rank_restarts=0))
    assert "ddp_checkpoint_timestamp_seconds" not in values
    assert values["ddp_checkpoint_step"] == 1


def test_histogram_counts_values_up_to_its_bounds() -> None:
    histogram = Histogram()
    histogram.observe([0.0, BOUNDS[0], BOUNDS[0] * 1.01, 1e9])
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-1] == 1
    assert sum(histogram.counts) == 4
    continued = Histogram(histogram.counts, total=histogram.total)
    continued.observe([1.0])
    assert sum(continued.counts) == 5
    assert sum(Histogram([1, 2]).counts) == 0  # of another version, with other buckets


def pace(own_seconds: list[float]) -> Pace:
    """Return the comparison of this many ranks."""
    slowest = max(own_seconds)
    others = (sum(own_seconds) - slowest) / max(len(own_seconds) - 1, 1)
    rank = own_seconds.index(slowest)
    return Pace(slowest_rank=rank, slowest_seconds=slowest, others_seconds=others)


@pytest.mark.parametrize(
    ("own_seconds", "named"),
    [
        ([0.1, 0.1, 0.2, 0.1], 2),
        ([0.1, 0.16], 1),
        ([0.16, 0.1], 0),
        ([0.1, 0.14], None),
        ([0.0004, 0.0012], None),  # less than a millisecond more
        ([0.1, 0.2, 0.2], None),  # slower than the mean, but so is another one
        ([0.0, 0.0], None),
        ([0.1], None),
    ],
)
def test_straggler_is_much_slower_than_the_others(
    own_seconds: list[float], named: int | None
) -> None:
    watch = StragglerWatch()
    found = [watch.compare(pace(own_seconds)) for _ in range(IN_A_ROW)]
    assert found[:-1] == [None] * (IN_A_ROW - 1)
    assert (found[-1].rank if found[-1] is not None else None) == named


def test_straggler_is_named_while_it_is_slow() -> None:
    watch = StragglerWatch()
    for _ in range(IN_A_ROW):
        straggler = watch.compare(pace([0.1, 0.1, 0.25]))
    assert str(straggler) == (
        "rank 2 holds the others up: its own time per step is 0.25 s, "
        "2.5 times the mean of the others"
    )
    assert watch.compare(pace([0.1, 0.1, 0.3])) is not None
    assert watch.compare(pace([0.3, 0.1, 0.1])) is None  # another rank, perhaps only once
    assert watch.compare(pace([0.1, 0.1, 0.3])) is None


def status_in(file: StatusFile) -> Status:
    """Return the status in a file, which must have one."""
    status = file.read()
    assert status is not None
    return status


def publisher_of(file: StatusFile | None, *histories: History) -> Publisher:
    """Return a publisher that has measured nothing yet."""
    return Publisher(file, list(histories), StepTimer())


def lines(path: Path) -> list[tuple[str, int]]:
    return [(line["kind"], line["step"]) for line in map(json.loads, path.open())]


def test_history_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "not yet there" / "metrics.jsonl"
    first = History(path)
    first.rewind(0)
    for step in (10, 20, 30):
        first.append("training", step=step, loss=math.nan)
    first.append("evaluation", step=30, accuracy=0.5)
    first.append("training", step=40)
    before = path.read_bytes()
    assert json.loads(before.splitlines()[0])["loss"] is None

    # A new group removes nothing; a repeated step is not recorded again.
    first.rewind(40)
    first.append("training", step=40)
    first.close()
    assert path.read_bytes() == before

    with path.open("ab") as torn:
        torn.write(b'{"kind": "training", "st')
    second = History(path)
    second.rewind(30)
    assert lines(path) == [("training", 10), ("training", 20), ("training", 30), ("evaluation", 30)]
    second.append("evaluation", step=30, accuracy=0.5)  # evaluated again, with the same result
    second.append("training", step=40)
    second.append("evaluation", step=45, accuracy=0.6)
    assert lines(path)[4:] == [("training", 40), ("evaluation", 45)]


def test_history_survives_a_failed_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    history = History(path)
    history.rewind(0)
    history.append("training", step=10)
    history.append("training", step=20)
    assert caplog.text.count("cannot write") == 1
    path.rmdir()
    history.append("training", step=30)
    assert lines(path) == [("training", 30)]


def test_history_survives_a_full_disk_at_its_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    history = History(path)
    history.append("training", step=10)
    close = os.close

    def failing(fd: int) -> None:  # as over a network: the descriptor is closed anyway
        close(fd)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "close", failing)
        history.close()
    assert caplog.text.count("No space left on device") == 1
    history.append("training", step=20)
    history.close()
    assert lines(path) == [("training", 10), ("training", 20)]


def test_status_that_cannot_be_written_is_removed_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = StatusFile(tmp_path / "status.json")
    publisher = publisher_of(file)
    publisher.begin(1, total_steps=9)
    assert file.read() is not None
    in_the_way = tmp_path / ".status.json.next"
    in_the_way.mkdir()
    publisher.begin(2, total_steps=9)
    publisher.begin(3, total_steps=9)
    # An old step would look like a training that hangs.
    assert file.read() is None
    assert caplog.text.count("cannot write the status") == 1
    in_the_way.rmdir()
    publisher.begin(4, total_steps=9)
    assert status_in(file).step == 4


def test_no_status_without_a_folder_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_arguments: object, **_settings: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    with status_file({}) as path:
        assert path is None
    assert "Read-only file system" in caplog.text


def test_files_left_in_the_status_folder_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_empty(*_arguments: object, **_settings: object) -> NoReturn:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as busy_folder, status_file({}) as path:
        assert path is not None
        busy_folder.setattr(os, "rmdir", not_empty)
    path.parent.rmdir()


def test_the_folder_of_a_killed_launcher_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_trainer.telemetry.status._directory", lambda: tmp_path)
    (tmp_path / "ddp-launcher-file").touch()
    (tmp_path / "ddp-launcher-link").symlink_to(tmp_path)
    lives = "from ddp_trainer.telemetry import status; from pathlib import Path; import sys, time\n"
    lives += "status._directory = lambda: Path(sys.argv[1])\n"
    lives += "with status.status_file({}) as path: print(path, flush=True); time.sleep(3600)\n"
    command = [sys.executable, "-c", lives, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            other = Path(launcher.stdout.readline().strip()).parent
            (other / "status.json").write_text("{}")
            with status_file({}):
                assert other.exists(), "its launcher runs"
        finally:
            launcher.kill()
    with status_file({}) as path:
        assert path is not None
        assert not other.exists()
    assert {each.name for each in tmp_path.iterdir()} == {"ddp-launcher-file", "ddp-launcher-link"}


def test_bar_stays_below_the_log() -> None:
    assert draw(0, 10, "step 0", columns=80) == f"[{'-' * 30}] step 0"
    assert draw(5, 10, "step 5", columns=80) == f"[{'#' * 15}{'-' * 15}] step 5"
    assert draw(10, 10, "a long text", columns=24) == f"[{'#' * 9}] a long text"
    assert len(draw(5, 10, "x" * 100, columns=40)) == 39
    assert draw(0, 0, "", columns=20) == f"[{'-' * 16}] "
    terminal = io.StringIO()
    bar = ProgressBar(terminal)
    bar.show(10, 10, "done")
    logger = logging.Logger("above the bar")
    logger.addHandler(logging.StreamHandler(bar))
    logger.warning("a line")
    bar.end()
    drawn = f"[{'#' * 30}] done"
    assert terminal.getvalue() == (f"\r\x1b[2K{drawn}\r\r\x1b[2Ka line\n{drawn}\r\r\x1b[2K\r")


class LaggingMoment:
    """A moment on a GPU, which lags behind."""

    def __init__(self, time: float) -> None:
        self.time = time
        self.reached = False

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, end: LaggingMoment) -> float:
        return (end.time - self.time) * 1e3


def test_laps_of_a_device_that_lags() -> None:
    moments: list[LaggingMoment] = []

    def mark() -> LaggingMoment:
        moments.append(LaggingMoment(float(len(moments) ** 2)))
        return moments[-1]

    timer = DeviceTimer(mark)  # at 0; the laps end at 1, 4 and 9
    timer.lap(Phase.DATA)
    timer.lap(Phase.COMPUTE)
    assert timer.own_seconds() == 0
    moments[1].reached = moments[2].reached = True
    timer.lap(Phase.COMMUNICATION)
    assert timer.seconds[Phase.DATA] == 1
    assert timer.seconds[Phase.COMPUTE] == 3
    assert timer.seconds[Phase.COMMUNICATION] == 0
    assert timer.own_seconds() == 4
    assert timer.own_seconds() == 0


def test_computing_ends_before_backward_waits() -> None:
    ticks = count()
    looks: list[str] = []
    place = "backward"

    class Tick:
        def __init__(self) -> None:
            self.time = next(ticks)

        def query(self) -> bool:
            looks.append(place)
            return True

        def elapsed_time(self, end: Any) -> float:
            return float(end.time - self.time) * 1e3

    timer = DeviceTimer(Tick)
    weight = torch.ones(1, requires_grad=True)

    def wait() -> None:
        next(ticks)

    def wait_at_the_end(_parameter: torch.Tensor) -> None:  # as DDP does
        torch.autograd.Variable._execution_engine.queue_callback(wait)

    weight.register_post_accumulate_grad_hook(wait_at_the_end)  # type: ignore[no-untyped-call]
    loss = (weight * 2).sum()
    timer.lap_before_waiting(loss)
    loss.backward()  # type: ignore[no-untyped-call]
    place = "step"
    timer.lap(Phase.COMMUNICATION)
    assert looks == ["step", "step"]  # a look at CUDA's event keeps Python's lock
    assert timer.seconds[Phase.COMPUTE] == 1
    assert timer.seconds[Phase.COMMUNICATION] == 2


def test_counters_continue_in_the_next_process(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "status.json")

    def publisher() -> Publisher:
        timer = StepTimer()
        timer.lap(Phase.COMPUTE)
        return Publisher(file, [], timer)

    def measured() -> Measurements:
        measurements = status_in(file).measurements
        assert measurements is not None
        return measurements

    first = publisher()
    first.begin(0, total_steps=9)
    assert measured().reforms == 0
    first.step(1)
    first.step(2)
    first.pause(time.monotonic())
    first.begin(2, total_steps=9)
    first.close()
    before = measured()
    assert sum(before.step_counts) == 2
    assert before.reforms == 1
    second = publisher()
    second.begin(2, total_steps=9)
    second.step(3)
    second.close()
    after = measured()
    assert sum(after.step_counts) == 3
    assert after.reforms == 2
    assert after.phase_seconds["compute"] > before.phase_seconds["compute"]
    assert after.reform_seconds > before.reform_seconds


def test_status_has_the_start_of_the_present_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1795230000.0
    monkeypatch.setattr(time, "time", lambda: now)
    file = StatusFile(tmp_path / "status.json")
    publisher = publisher_of(file)
    for begins in (0, 5, 3):
        now += 1
        publisher.begin(begins, total_steps=9)
        began = Resumption(step=begins, time=utc_to_the_millisecond(now))
        status = status_in(file)
        assert (status.resumed, status.trained_seconds) == (began, None)
        for step in (begins + 1, begins + 2):
            publisher.step(step, trained_seconds=step / 2)
            publisher.close()
            status = status_in(file)
            assert (status.resumed, status.trained_seconds) == (began, step / 2)


def test_first_steps_of_groups_outlive_processes_and_removed_lines(tmp_path: Path) -> None:
    file, path = StatusFile(tmp_path / "status.json"), tmp_path / "metrics.jsonl"
    began: list[int] = []
    for begins in (0, 5, 3, 3):
        publisher = publisher_of(file, History(path))
        publisher.begin(begins, total_steps=9)
        status = status_in(file)
        assert [each.step for each in status.first_steps or ()] == began
        for step in (begins + 1, begins + 2):
            publisher.step(step)
        publisher.close()
        began.append(begins + 1)
    status = status_in(file)
    assert status.first_steps is not None
    assert (
        status.first_steps[-1].time == json.loads(path.read_text().splitlines()[-1])["lastStepTime"]
    )
    path.write_text('{"kind": "start", "step": 1, "firstSteps": [{"step": 1, "time": "noon"}]}\n')
    history = History(path)
    history.rewind(1)
    assert (history.first_steps, lines(path)) == ((), [("start", 1)])


def test_last_step_time_is_that_of_the_last_complete_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new group, an evaluation or a new status does not change it."""
    now = 1795230000.0
    monkeypatch.setattr(time, "time", lambda: now)
    file, path = StatusFile(tmp_path / "status.json"), tmp_path / "metrics.jsonl"

    def last_step() -> tuple[int, str | None]:
        status = status_in(file)
        return status.step, status.last_step_time

    first = publisher_of(file, History(path))
    first.begin(0, total_steps=9)
    assert last_step() == (0, None), "no step yet"
    now += 1.0625
    first.step(1)
    now += 10
    first.interval(step=1, epoch=1, loss=0.5, samples_per_second=1.0, pace=pace([1.0]))
    first.evaluated(step=1, epoch=1, accuracy=0.5)
    first.pause(time.monotonic())
    now += 10
    first.begin(1, total_steps=9)
    assert last_step() == (1, "2026-11-21T03:00:01.062Z")
    assert (status_in(file).accuracy, status_in(file).accuracy_step) == (0.5, 1)
    first.close()

    second = publisher_of(file, History(path))
    now += 10
    second.begin(1, total_steps=9)
    assert last_step() == (1, "2026-11-21T03:00:01.062Z"), "of its predecessor in the same pod"
    now += 1
    second.step(2)
    second.close()
    assert last_step() == (2, "2026-11-21T03:00:32.062Z")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["lastStepTime"]) for line in lines] == [
        ("start", "2026-11-21T03:00:01.062Z"),
        ("training", "2026-11-21T03:00:01.062Z"),
        ("evaluation", "2026-11-21T03:00:01.062Z"),
        ("start", "2026-11-21T03:00:32.062Z"),
    ]
    starts = [line["formedTime"] for line in lines if line["kind"] == "start"]
    assert starts == ["2026-11-21T03:00:00.000Z", "2026-11-21T03:00:31.062Z"]


def test_history_has_the_time_of_a_checkpoint_and_the_slowest_rank(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    publisher = publisher_of(None, History(path))
    publisher.begin(0, total_steps=9)
    publisher.saved(CheckpointStatus(step=0))  # by the previous process
    publisher.step(1)
    publisher.step(2)
    publisher.interval(step=2, epoch=1, loss=0.5, samples_per_second=1.0, pace=pace([0.1, 0.3]))
    publisher.saved(CheckpointStatus(step=1, time="2026-11-21T03:00:00Z"), seconds=0.25)
    publisher.close()
    start, training, checkpoint = map(json.loads, path.read_text().splitlines())
    assert start["kind"] == "start"
    assert (training["paceRank"], training["paceSeconds"]) == (1, 0.3)
    assert training["othersPaceSeconds"] == 0.1
    assert 0 <= training["longestStepSeconds"] < 10
    assert (checkpoint["savedStep"], checkpoint["seconds"]) == (1, 0.25)
    assert checkpoint["savedTime"] == "2026-11-21T03:00:00Z"


def test_status_has_the_last_comparison_of_the_group(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "status.json")
    publisher = publisher_of(file)

    def pace_after(own_seconds: list[float], step: int) -> PaceStatus | None:
        publisher.interval(
            step=step, epoch=1, loss=0.5, samples_per_second=1.0, pace=pace(own_seconds)
        )
        publisher.close()
        return status_in(file).pace

    publisher.begin(0, total_steps=9)
    wanted = PaceStatus(step=2, rank=1, seconds=0.3, others_seconds=0.1)
    assert pace_after([0.1, 0.3], 2) == wanted
    assert pace_after([0.3], 4) is None, "there is no other rank"
    assert pace_after([0.1, 0.3], 2) == wanted
    publisher.begin(2, total_steps=9)
    assert status_in(file).pace is None, "of an earlier group"


def test_first_step_of_a_group_is_in_the_status_at_once(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "status.json")
    publisher = publisher_of(file)
    for step in (3, 7):
        publisher.begin(step, total_steps=9)
        publisher.step(step + 1)
        assert status_in(file).step == step + 1


def test_only_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    bar = ProgressBar.on_stdout()
    assert bar is not None
    bar.show(1, 1, "done")
    logging.getLogger("ddp_trainer").warning("above")
    assert f"above\n[{'#' * 30}] done\r" in terminal.getvalue()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert ProgressBar.on_stdout() is None
