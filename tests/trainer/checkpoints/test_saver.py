"""Saves in the background: training waits for few of them and survives their failures."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer.checkpoints.background_save import is_worth_overtaking
from ddp_trainer.checkpoints.checkpoint import Checkpoint, CheckpointDirectory
from ddp_trainer.checkpoints.frozen_weights import FrozenWeights
from ddp_trainer.checkpoints.saver import Saver
from ddp_trainer.checkpoints.storage import Recorder, Transfer
from ddp_trainer.collectives.group import Group
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.run.position import Order, Position
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest
from torch import nn

from tests.trainer.support.pods import assert_same, until
from tests.trainer.support.same_group import group_of_one

DEADLINE_SECONDS = 60.0


class GatedDirectory(CheckpointDirectory):
    """A directory on a disk that hangs at the save of a step until the test releases it."""

    def __init__(self, root: Path, *, slow_step: int) -> None:
        super().__init__(root, keep=2)
        self.gate = threading.Event()
        self.events: list[str] = []
        self._slow_step = slow_step

    def save(
        self,
        write_state: Callable[[Recorder], object],
        *,
        step: int,
        transfer: Transfer,
        score: float | None = None,
        frozen: FrozenWeights | None = None,
    ) -> Checkpoint:
        def write(file: Recorder) -> None:
            self.events.append(f"begin {step}")
            if step == self._slow_step:
                assert self.gate.wait(DEADLINE_SECONDS)
            write_state(file)
            self.events.append(f"end {step}")

        return super().save(write, step=step, transfer=transfer, score=score, frozen=frozen)


def new_run() -> TrainState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    run = TrainState(parts, seed=0, device=torch.device("cpu"))
    run.choose_samples(1000)
    return run


def advance(run: TrainState) -> None:
    run.models[0](torch.randn(4, 3)).square().sum().backward()
    run.updates.complete_step(4)


def saver(directory: CheckpointDirectory, *flags: str) -> Saver:
    options = Options.parse(flags)
    return Saver(directory, options, stop=StopSignal(within_seconds=DEADLINE_SECONDS))


def stored(root: Path) -> Any:
    """Return the state in the newest checkpoint."""
    found = CheckpointDirectory(root, keep=2).load()
    assert found is not None
    return torch.load(io.BytesIO(found.state), weights_only=True)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_training_continues_while_the_disk_is_slow(tmp_path: Path) -> None:
    directory = GatedDirectory(tmp_path, slow_step=1)
    run, one = new_run(), saver(directory)
    advance(run)
    at_the_save = copy.deepcopy(run.state_dict())
    one.save(run)
    for _ in range(3):
        advance(run)
    assert directory.newest is None
    directory.gate.set()
    one.close()
    assert_same(stored(tmp_path), at_the_save)


def test_a_save_waits_for_the_one_before(tmp_path: Path) -> None:
    directory = GatedDirectory(tmp_path, slow_step=1)
    run, one = new_run(), saver(directory)
    advance(run)
    one.save(run)
    advance(run)
    opener = threading.Timer(0.2, directory.gate.set)
    opener.start()
    one.save(run)
    one.close()
    assert directory.events == ["begin 1", "end 1", "begin 2", "end 2"]
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_disk_that_hangs_costs_saves_but_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = GatedDirectory(tmp_path, slow_step=1)
    run, one = new_run(), saver(directory, "--checkpoint-timeout-seconds", "1")
    advance(run)
    one.save(run)
    advance(run)
    one.save(run)
    assert "not saving step 2: the save of step 1 is still in progress" in caplog.text
    directory.gate.set()
    advance(run)
    one.save(run)
    one.close()
    assert directory.events == ["begin 1", "end 1", "begin 3", "end 3"]


def test_a_failed_save_is_reported_and_the_next_one_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "checkpoints"
    directory = CheckpointDirectory(root, keep=2)
    run, one = new_run(), saver(directory)
    root.write_text("a file where the directory should be")
    advance(run)
    one.save(run)
    one.close()
    assert "saving the checkpoint of step 1 failed ([Errno 17] File exists" in caplog.text
    with pytest.raises(FileExistsError):
        one.save_for_certain(run)
    one.save_if_best(run, 0.5)
    one.close()
    root.unlink()
    advance(run)
    one.save(run)
    one.save_for_certain(run)
    assert names(root) == ["step-00000002"]
    assert_same(stored(root), run.state_dict())


@pytest.mark.parametrize("flags", [[], ["--checkpoint-sync"]])
def test_a_step_is_saved_once(flags: list[str], tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep=2)
    run, one = new_run(), saver(directory, *flags)
    advance(run)
    one.save(run)
    assert not flags or directory.newest is not None, "a synchronous save is complete"
    one.save(run)
    one.save_for_certain(run)
    assert names(tmp_path) == ["step-00000001"]
    assert_same(stored(tmp_path), run.state_dict())


def test_a_synchronous_save_that_takes_too_long_is_never_completed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Later the state changes, and a save of it must not become valid."""
    directory = GatedDirectory(tmp_path, slow_step=1)
    run = new_run()
    one = saver(directory, "--checkpoint-sync", "--checkpoint-timeout-seconds", "1")
    advance(run)
    one.save(run)
    assert "gave up saving step 1" in caplog.text
    directory.gate.set()
    one.close()
    assert names(tmp_path) == []


def test_a_stopped_rank_cancels_a_save_that_hangs_and_saves_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = GatedDirectory(tmp_path, slow_step=1)
    run, one = new_run(), saver(directory)
    advance(run)
    one.save(run)
    advance(run)
    one.save_for_certain(run, within_seconds=14.0)
    assert "cancelling the save of step 1 for that of step 2" in caplog.text
    assert_same(stored(tmp_path), run.state_dict())
    directory.gate.set()
    until(lambda: names(tmp_path) == ["step-00000002"], "the other one to be taken away")


def test_a_stopped_rank_does_not_wait_forever_for_its_disk(tmp_path: Path) -> None:
    directory = GatedDirectory(tmp_path, slow_step=2)
    run, one = new_run(), saver(directory)
    advance(run)
    one.save_for_certain(run)
    advance(run)
    with pytest.raises(TimeoutError, match=r"the newest good checkpoint is .*\(step 1\)"):
        one.save_for_certain(run, within_seconds=0.2)
    directory.gate.set()
    one.close()
    assert names(tmp_path) == ["step-00000001"]


def test_the_last_save_takes_the_time_it_needs(tmp_path: Path) -> None:
    directory = GatedDirectory(tmp_path, slow_step=1)
    run, one = new_run(), saver(directory, "--checkpoint-timeout-seconds", "1")
    advance(run)
    calls: list[None] = []

    def meanwhile() -> None:
        calls.append(None)
        if len(calls) == 2:  # more than the time-out
            directory.gate.set()

    one.save_for_certain(run, meanwhile=meanwhile)
    assert names(tmp_path) == ["step-00000001"]


def test_a_save_is_due_by_seconds_or_never(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep=2)
    assert not saver(directory, "--checkpoint-every-seconds", "3600").is_overdue()
    assert saver(directory, "--checkpoint-every-seconds", "1e-9").is_overdue()
    assert not saver(directory).is_overdue()


def test_a_save_is_due_once_for_several_requests(tmp_path: Path) -> None:
    environment = {"DDP_STATUS_FILE": str(tmp_path / "status.json")}
    launchers = CheckpointRequest(tmp_path / "status.json")
    assert not launchers.make(), "nobody looks yet"
    one = saver(CheckpointDirectory(tmp_path / "checkpoints", keep=2))
    checkpoint_manager = CheckpointManager(
        one, 0, ask_to_save=lambda: CheckpointRequest.from_env(environment)
    )
    assert not launchers.make(), "it is not rank 0"
    checkpoint_manager.lead(True)
    assert not checkpoint_manager.is_overdue()
    assert launchers.make()
    assert launchers.make()
    assert checkpoint_manager.is_overdue()
    checkpoint_manager.save(new_run())
    assert not checkpoint_manager.is_overdue()
    assert launchers.make()
    assert checkpoint_manager.is_overdue()
    checkpoint_manager.lead(False)
    assert not checkpoint_manager.is_overdue(), "it does not save"
    assert not launchers.make()
    checkpoint_manager.lead(True)
    assert launchers.make()
    assert checkpoint_manager.is_overdue()
    again = CheckpointRequest.from_env(environment)
    assert again is not None
    assert not again.is_open(), "it was asked of an earlier process"
    checkpoint_manager.close()


def test_without_a_launcher_there_are_no_requests(tmp_path: Path) -> None:
    assert CheckpointRequest.from_env({}) is None
    assert CheckpointRequest.from_env({"DDP_STATUS_FILE": str(tmp_path / "no" / "x")}) is None


def test_a_save_is_due_by_steps_on_all_ranks() -> None:
    checkpoint_manager = CheckpointManager(None, 3)
    assert [step for step in range(1, 10) if checkpoint_manager.is_due(step)] == [3, 6, 9]
    assert not CheckpointManager(None, 0).is_due(1)


def test_the_best_model_is_saved_with_its_score(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep=1)
    run, one = new_run(), saver(directory)
    for score in (0.3, 0.9, 0.5):
        advance(run)
        one.save_if_best(run, score)
        advance(run)
        one.save(run)
    one.close()
    assert names(tmp_path) == ["step-00000003", "step-00000006"]
    assert not directory.is_best(0.9)


def test_an_evaluation_does_not_change_the_checkpoint_of_a_step() -> None:
    run = new_run()
    run.order = Order(seed=0, samples=4)
    advance(run)
    before = copy.deepcopy(run.state_dict())
    run.position.next_epoch()
    assert_same(run.state_dict(), before)
    position = asdict(Position(step=1, samples=4, is_at_end=True))
    assert before["position"] == position
    other = new_run()
    other.order = run.order
    other.load_state_dict(copy.deepcopy(run.full_state_dict()))
    assert other.position == Position(step=1, epoch=1, samples=0)


@pytest.fixture
def alone() -> Iterator[Group]:
    with group_of_one() as group:
        yield group


def test_a_partly_received_state_is_not_used(alone: Group, tmp_path: Path) -> None:
    run = new_run()
    run.is_torn = True
    with pytest.raises(RuntimeError, match="all ranks that had the state were lost"):
        CheckpointManager(None, 0).agree(run, alone)
    advanced = new_run()
    advance(advanced)
    directory = CheckpointDirectory(tmp_path, keep=1)
    saver(directory).save_for_certain(advanced)
    CheckpointManager(saver(CheckpointDirectory(tmp_path, keep=1)), 0).agree(run, alone)
    assert_same(run.state_dict(), advanced.state_dict())
    assert not run.is_torn


def test_a_checkpoint_of_other_data_is_refused() -> None:
    run = new_run()
    run.order = Order(seed=0, samples=999)
    with pytest.raises(ValueError, match="seed 0 and 1000 training samples, this one has"):
        run.load_state_dict(new_run().full_state_dict())


@pytest.mark.parametrize(
    ("fraction", "elapsed_seconds", "seconds_left", "overtaken"),
    [
        (0.0, 5.0, 14.0, True),  # nothing written yet: nothing lost
        (0.5, 1.0, 14.0, False),  # time for the rest, 1 s, and for another one, 2 s
        (0.5, 5.0, 14.0, True),  # another one takes 10 s, the rest and another one 15 s
        (0.5, 5.0, 15.0, False),
        (0.5, 10.0, 14.0, False),  # another one would take 20 s, the rest of this one only 10 s
    ],
)
def test_the_time_left_decides_if_a_save_is_finished_or_cancelled(
    fraction: float, elapsed_seconds: float, seconds_left: float, overtaken: bool
) -> None:
    assert (
        is_worth_overtaking(fraction, elapsed_seconds=elapsed_seconds, seconds_left=seconds_left)
        is overtaken
    )
