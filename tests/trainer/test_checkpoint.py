"""Checkpoints are whole or not there at all, whatever happens to the disk."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_trainer.checkpoint import CheckpointDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

OLD, NEW = b"old" * 1000, b"new" * 1000


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with a checkpoint of step 10 and one of step 20."""
    directory = CheckpointDirectory(tmp_path, keep=2)
    directory.save(OLD, step=10)
    directory.save(NEW, step=20)
    return tmp_path


def reopened(root: Path, *, keep: int = 2) -> CheckpointDirectory:
    return CheckpointDirectory(root, keep=keep)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_newest_is_loaded(two: Path) -> None:
    directory = reopened(two)
    assert directory.load() == NEW
    assert directory.newest is not None
    assert directory.newest.step == 20


@pytest.mark.parametrize("root", ["", "not/there/yet"])
def test_nothing_to_load(tmp_path: Path, root: str) -> None:
    directory = reopened(tmp_path / root)
    assert directory.load() is None
    assert directory.newest is None


def test_an_unreadable_directory_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "step-00000010").write_text("a file where a directory should be")
    with pytest.raises(NotADirectoryError):
        reopened(tmp_path).load()


def truncate(checkpoint: Path) -> None:
    (checkpoint / "state.pt").write_bytes(NEW[:-1])


def lose_state(checkpoint: Path) -> None:
    (checkpoint / "state.pt").unlink()


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def truncate_manifest(checkpoint: Path) -> None:
    manifest = checkpoint / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])


def come_from_the_future(checkpoint: Path) -> None:
    manifest = checkpoint / "manifest.json"
    content = json.loads(manifest.read_text())
    content["checkpoint"]["format_version"] = 2
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage", [truncate, lose_state, lose_manifest, truncate_manifest, come_from_the_future]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    two: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(two / "step-00000020")
    directory = reopened(two)
    with caplog.at_level(logging.WARNING):
        assert directory.load() == OLD
    assert directory.newest is not None
    assert directory.newest.step == 10
    assert f"checkpoint {two / 'step-00000020'} is damaged" in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_changed_byte_goes_unnoticed(two: Path, data: st.DataObject) -> None:
    file = two / "step-00000020" / data.draw(st.sampled_from(["state.pt", "manifest.json"]))
    good = file.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    file.write_bytes(good[:at] + bytes([other]) + good[at + 1 :])
    try:
        # White space in the manifest may change; nothing that is loaded may.
        assert reopened(two).load() in (OLD, NEW)
        if file.name == "state.pt":
            assert reopened(two).load() == OLD
    finally:
        file.write_bytes(good)


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    directory = reopened(tmp_path, keep=2)
    for step in (5, 10, 15, 20):
        directory.save(NEW, step=step)
    assert names(tmp_path) == ["step-00000015", "step-00000020"]


def test_damaged_ones_do_not_count_among_those_kept(two: Path) -> None:
    truncate(two / "step-00000020")
    directory = reopened(two)
    assert directory.load() == OLD
    directory.save(NEW, step=20)  # trained again from step 10
    assert names(two) == ["step-00000010", "step-00000020", "step-00000020-2"]
    assert reopened(two).load() == NEW
    directory.save(NEW, step=30)
    directory.save(NEW, step=40)
    assert names(two) == ["step-00000030", "step-00000040"]


def test_other_files_are_left_alone(two: Path) -> None:
    (two / "step-by-step.txt").write_text("mine")
    reopened(two, keep=1).save(NEW, step=30)
    assert names(two) == ["step-00000030", "step-by-step.txt"]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to write more into any file: as on a full disk, but for everyone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 100, len(NEW) - 1])
def test_a_failed_save_leaves_nothing_behind_and_the_old_ones_alone(two: Path, room: int) -> None:
    directory = reopened(two)
    assert directory.load() == NEW
    with files_no_larger_than(room), pytest.raises(OSError, match="File too large"):
        directory.save(NEW, step=30)
    assert names(two) == ["step-00000010", "step-00000020"]
    assert directory.newest is not None
    assert directory.newest.step == 20
    assert reopened(two).load() == NEW


def test_a_manifest_that_cannot_be_written_completes_nothing(two: Path) -> None:
    # Room for the state of 10 bytes, but not for the manifest.
    with files_no_larger_than(10), pytest.raises(OSError, match="File too large"):
        reopened(two).save(b"0123456789", step=30)
    assert names(two) == ["step-00000010", "step-00000020"]
