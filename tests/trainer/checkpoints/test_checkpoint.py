"""A checkpoint is complete or absent after any fault of the disk."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.storage import CancelledError, Recorder, Transfer
from ddp_trainer.system import buffers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

OLD, NEW = b"old" * 1000, b"new" * 1000


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Return a directory with checkpoints of steps 10 and 20."""
    directory = CheckpointDirectory(tmp_path, keep=2)
    save(directory, OLD, step=10)
    save(directory, NEW, step=20)
    return tmp_path


def save(
    directory: CheckpointDirectory, state: bytes, *, step: int, score: float | None = None
) -> None:
    directory.save(
        lambda file: file.write(state), step=step, transfer=Transfer(len(state)), score=score
    )


def reopened(root: Path, *, keep: int = 2) -> CheckpointDirectory:
    return CheckpointDirectory(root, keep=keep)


def loaded(directory: CheckpointDirectory) -> bytes | None:
    stored = directory.load()
    return bytes(stored.state) if stored is not None else None


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_newest_is_loaded(two: Path) -> None:
    directory = reopened(two)
    assert loaded(directory) == NEW
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
    content["content"]["format_version"] = 3
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
        assert loaded(directory) == OLD
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
        assert loaded(reopened(two)) in (OLD, NEW)
        if file.name == "state.pt":
            assert loaded(reopened(two)) == OLD
    finally:
        file.write_bytes(good)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = two / "step-00000020" / "state.pt"
    state.unlink()
    state.mkdir()  # nobody can read that, not even root
    directory = reopened(two)
    assert loaded(directory) == OLD
    assert f"checkpoint {state.parent}: [Errno 21] Is a directory" in caplog.text


def test_a_directory_without_a_readable_checkpoint_is_an_error(two: Path) -> None:
    for state in two.glob("*/state.pt"):
        state.unlink()
        state.mkdir()
    with pytest.raises(IsADirectoryError):
        reopened(two).load()


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    directory = reopened(tmp_path, keep=2)
    for step in (5, 10, 15, 20):
        save(directory, NEW, step=step)
    assert names(tmp_path) == ["step-00000015", "step-00000020"]


def test_the_best_is_kept_too(tmp_path: Path) -> None:
    directory = reopened(tmp_path)
    for step, score in enumerate([0.5, 0.9, 0.9, 0.7, 0.8], start=1):
        is_best = directory.is_best(score)
        assert is_best == (step in (1, 2))
        save(directory, NEW, step=step, score=score if is_best else None)
    assert names(tmp_path) == ["step-00000002", "step-00000004", "step-00000005"]
    assert reopened(tmp_path).is_best(0.91)
    assert not reopened(tmp_path).is_best(float("nan"))
    assert not CheckpointDirectory(tmp_path, keep=1, keep_best=False).is_best(1.0)
    save(directory, NEW, step=6, score=1.0)
    save(directory, NEW, step=7)
    assert names(tmp_path) == ["step-00000006", "step-00000007"]


def test_a_step_saved_before_gets_its_score_later(two: Path) -> None:
    directory = reopened(two)
    assert loaded(directory) == NEW
    save(directory, OLD, step=20, score=0.5)
    assert loaded(reopened(two)) == NEW
    assert not reopened(two).is_best(0.5)
    (two / "step-00000020" / "score.json").write_text("{")
    assert reopened(two).is_best(0.5)
    assert loaded(reopened(two)) == NEW


def test_damaged_ones_do_not_count_among_those_kept(two: Path) -> None:
    truncate(two / "step-00000020")
    directory = reopened(two)
    assert loaded(directory) == OLD
    save(directory, NEW, step=20)  # trained again from step 10
    assert names(two) == ["step-00000010", "step-00000020", "step-00000020-2"]
    assert loaded(reopened(two)) == NEW
    save(directory, NEW, step=30)
    save(directory, NEW, step=40)
    assert names(two) == ["step-00000030", "step-00000040"]


def test_other_files_are_left_alone(two: Path) -> None:
    (two / "step-by-step.txt").write_text("mine")
    save(reopened(two, keep=1), NEW, step=30)
    assert names(two) == ["step-00000030", "step-by-step.txt"]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let the kernel refuse to write more into any file, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 100, len(NEW) - 1])
def test_a_failed_save_changes_nothing_and_the_next_one_succeeds(two: Path, room: int) -> None:
    directory = reopened(two)
    assert loaded(directory) == NEW
    with files_no_larger_than(room), pytest.raises(OSError, match="File too large"):
        save(directory, NEW, step=30)
    assert names(two) == ["step-00000010", "step-00000020"]
    assert directory.newest is not None
    assert directory.newest.step == 20
    assert loaded(reopened(two)) == NEW
    save(directory, OLD, step=40)
    assert names(two) == ["step-00000020", "step-00000040"]
    assert loaded(reopened(two)) == OLD


@contextmanager
def no_permission(directory: Path) -> Iterator[None]:
    """Let this process not write there; root gives up its rights for that."""
    user = os.geteuid()
    mode = directory.stat().st_mode
    directory.chmod(0o500)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(mode)


def test_no_permission_to_write(two: Path) -> None:
    directory = reopened(two)
    assert loaded(directory) == NEW
    with no_permission(two), pytest.raises(PermissionError):
        save(directory, NEW, step=30)
    assert names(two) == ["step-00000010", "step-00000020"]
    assert loaded(reopened(two)) == NEW


def test_a_save_called_off_leaves_nothing_behind(two: Path) -> None:
    transfer = Transfer(1)

    def write(file: Recorder) -> None:
        file.write(NEW)
        transfer.cancel()

    with pytest.raises(CancelledError):
        reopened(two).save(write, step=30, transfer=transfer)
    assert names(two) == ["step-00000010", "step-00000020"]


def test_a_manifest_that_cannot_be_written_completes_nothing(two: Path) -> None:
    # Room for the state of 10 bytes, but not for the manifest.
    with files_no_larger_than(10), pytest.raises(OSError, match="File too large"):
        save(reopened(two), b"0123456789", step=30)
    assert names(two) == ["step-00000010", "step-00000020"]


class _Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.file,)


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    file, state = tmp_path / "attacked", io.BytesIO()
    torch.save({"model": _Attack(file)}, state)
    directory = CheckpointDirectory(tmp_path / "checkpoints", keep=2)
    save(directory, state.getvalue(), step=10)
    stored = loaded(directory)
    assert stored is not None
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        buffers.load(stored)
    assert not file.exists()
    torch.load(io.BytesIO(stored), weights_only=False)
    assert file.exists(), "the attack works where code may run"
