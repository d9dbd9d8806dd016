"""DCP's own storage in files saves to memory, and loads from there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ddp_trainer.memory import saving
from ddp_trainer.memory.dcp_files import start
from ddp_trainer.memory.dcp_files.folders import SavedFolders
from ddp_trainer.memory.dcp_files.patches import patch
from ddp_trainer.settings.environment import Environment
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.ports import free_port
from tests.trainer.memory.pods import launcher, variables

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Files:
    """DCP's module as a rank of one generation has it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = tmp_path / "disk/ckpt"
        self.own = tmp_path / "memory/own/0"
        self.folders = SavedFolders(tmp_path / "memory")
        self._monkeypatch = monkeypatch
        (tmp_path / "memory").mkdir()
        made = {
            **variables(tmp_path / "memory"),
            "DDP_STATUS_PORT": str(free_port()),
            "DDP_CHECKPOINTS_IN_MEMORY": str(self.root),
            "DDP_LOCAL_PATHS": str(tmp_path / "disk"),
        }
        for name, value in made.items():
            monkeypatch.setenv(name, value)
        self.begin(1)

    def begin(self, generation: int) -> None:
        """Begin a generation: patch new classes of DCP."""
        self._monkeypatch.setenv("DDP_GENERATION", str(generation))
        saving._saver.cache_clear()
        module: Any = ModuleType("filesystem")
        module.FileSystemWriter = type("FileSystemWriter", (FileSystemWriter,), {})
        module.FileSystemReader = type("FileSystemReader", (FileSystemReader,), {})
        patch(module, os.environ)
        self.writer, self.reader = module.FileSystemWriter, module.FileSystemReader

    def save(self, name: str, state: dict[str, Any], **options: Any) -> None:
        """Save a checkpoint."""
        dcp_save(state, storage_writer=self.writer(self.root / name), **options)

    def snapshots(self) -> list[str]:
        """Return the names of the snapshots in memory."""
        return sorted(each.name for each in self.own.glob("*.snapshot"))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """DCP in the first generation."""
    yield Files(tmp_path, monkeypatch)
    saving._saver.cache_clear()


def test_checkpoint_is_read_from_memory_after_a_restart(files: Files) -> None:
    weights = torch.rand(2, 3)
    files.save("step-4", {"weights": weights, "epoch": 2})
    assert files.snapshots() == ["1-4-0-1-sharded.snapshot"]
    (files.root / "step-4/__0_0.distcp").unlink()

    files.begin(2)
    environment = Environment.from_env(os.environ)
    path = files.own / "1-4-0-1-sharded.snapshot"
    with launcher(environment, (200, {"path": str(path), "step": 4, "generation": 1})):
        start.settle(environment, files.folders, str(files.root))
        state: dict[str, Any] = {"weights": torch.zeros(2, 3), "epoch": 0}
        dcp_load(state, storage_reader=files.reader(files.root / "step-4"))
    assert torch.equal(state["weights"], weights)
    assert state["epoch"] == 2

    files.begin(2)  # as in the script's process
    files.save("step-4", {"weights": weights + 1, "epoch": 3})
    dcp_load(state, storage_reader=files.reader(files.root / "step-4"))  # no launcher answers
    assert torch.equal(state["weights"], weights + 1)
    assert "2-5-0-1-sharded.snapshot" in files.snapshots(), "the step increases"


def test_torn_save_is_not_in_memory(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(FileSystemWriter, "finish", fail)
    files.begin(1)
    with pytest.raises(CheckpointException, match="no space left"):
        files.save("step-4", {"epoch": 2})
    assert (files.root / "step-4/__0_0.distcp").exists()
    assert files.snapshots() == []
    assert list(files.folders.read().folders) == [str(files.root / "step-4")]


def test_only_the_first_kind_of_checkpoint_is_kept(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.save("step-4", {"epoch": 2})
    files.save("best", {"epoch": 2})
    files.save("step-5", {"epoch": 3})
    assert [name[:4] for name in files.snapshots()] == ["1-4-", "1-5-"]
    assert {Path(path).name for path in files.folders.read().folders} == {"step-4", "step-5"}
    assert "best is not kept: only one kind of checkpoint can be, step-# here" in caplog.text


def test_folders_without_numbers_are_counted(files: Files) -> None:
    for epoch in range(3):
        files.save("last", {"epoch": epoch})
    assert [name[:4] for name in files.snapshots()] == ["1-0-", "1-1-"]
    assert (files.own / "step").read_text() == "1 2"


def test_checkpoint_elsewhere_is_not_kept(files: Files, tmp_path: Path) -> None:
    files.save(str(tmp_path / "disk/other/step-4"), {"epoch": 2})
    assert files.snapshots() == []
    assert files.folders.read().folders == {}
    state = {"epoch": 0}
    dcp_load(state, storage_reader=files.reader(tmp_path / "disk/other/step-4"))
    assert state == {"epoch": 2}


def test_state_that_cannot_be_kept_is_saved_to_disk_and_named(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.save("step-4", {"path": Path("/")})
    assert files.snapshots() == []
    assert (files.root / "step-4/.metadata").exists()
    assert 'step-4 is not kept: state["objects"]["path"] is of type PosixPath' in caplog.text
    # The class has the cache, by its name: other tests need theirs.
    planner = type("CachingPlanner", (DefaultSavePlanner,), {})(enable_plan_caching=True)
    for step in (5, 6):
        files.save(f"step-{step}", {"epoch": step}, planner=planner)
    assert [name[:4] for name in files.snapshots()] == ["1-5-"]
    assert "enable_plan_caching=True: set it to False" in caplog.text
