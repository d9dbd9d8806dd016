"""Of several processes with one directory, only the newest group's rank 0 saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.claim import Claim
from ddp_trainer.checkpoints.storage import Recorder, Transfer
from ddp_trainer.exit_codes import SupersededError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.settings.environment import Placement

from tests.trainer.checkpoints.test_saver import advance, names, new_run, saver
from tests.trainer.support.pods import contract


class Process:
    """A process that is rank 0 of its generations."""

    def __init__(self, root: Path, generation: int, *, attempt: int = 0) -> None:
        self.placement = replace(
            Placement.from_env(contract()), generation=generation, attempt=attempt
        )
        self.directory = CheckpointDirectory(
            root, keep=2, claim=Claim(root, lambda: self.placement)
        )
        self.saver = saver(self.directory)
        self.checkpoint_manager = CheckpointManager(self.saver, 0)

    def lead(self, generation: int) -> None:
        self.placement = replace(self.placement, generation=generation)
        self.checkpoint_manager.lead(True)


def test_only_the_newest_process_saves(tmp_path: Path) -> None:
    run = new_run()
    old, new = Process(tmp_path, 1), Process(tmp_path, 2)
    old.lead(1)
    old.saver.save_for_certain(run)
    new.lead(2)
    advance(run)
    refusal = "attempt 0, generation 2 of the job saves to"
    with pytest.raises(SupersededError, match=refusal):
        old.saver.save_for_certain(run)
    with pytest.raises(SupersededError, match=refusal):
        old.saver.save(run)
    with pytest.raises(SupersededError, match=refusal):
        Process(tmp_path, 1).lead(1)
    new.saver.save_for_certain(run)
    assert names(tmp_path) == ["saved-by-7d1f-0-2", "step-00000000", "step-00000001"]
    Process(tmp_path, 0, attempt=1).lead(0)
    with pytest.raises(SupersededError, match="attempt 1, generation 0"):
        new.saver.save_for_certain(run)


def test_a_save_overtaken_by_a_newer_process_leaves_nothing(tmp_path: Path) -> None:
    old, new = Process(tmp_path, 1), Process(tmp_path, 2)
    old.lead(1)

    def write(file: Recorder) -> None:
        file.write(b"state")
        new.lead(2)

    with pytest.raises(SupersededError):
        old.directory.save(write, step=1, transfer=Transfer(5))
    assert names(tmp_path) == ["saved-by-7d1f-0-2"]


def test_a_process_that_stays_rank_0_excludes_generations_between(tmp_path: Path) -> None:
    stays, between = Process(tmp_path, 1), Process(tmp_path, 2)
    stays.lead(1)
    between.lead(2)  # it has lost its way to the operator
    stays.lead(3)
    stays.saver.save_for_certain(new_run())
    with pytest.raises(SupersededError, match="generation 3"):
        between.saver.save_for_certain(new_run())


def test_without_generations_there_are_no_marks(tmp_path: Path) -> None:
    one = Process(tmp_path, 0)
    one.lead(0)
    one.saver.save_for_certain(new_run())
    assert names(tmp_path) == ["step-00000000"]
