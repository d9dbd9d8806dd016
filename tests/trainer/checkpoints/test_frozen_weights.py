"""Frozen weights are written once, beside the checkpoints, which stay complete."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ddp_trainer.checkpoints import frozen_files, storage
from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.claim import Claim
from ddp_trainer.checkpoints.frozen_weights import FrozenWeights
from ddp_trainer.checkpoints.manifest import DamagedError, Manifest
from ddp_trainer.checkpoints.saver import Saver
from ddp_trainer.checkpoints.storage import Recorder, Transfer
from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import SupersededError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from torch import Tensor, nn

from tests.trainer.checkpoints.test_claim import Process
from tests.trainer.support.pods import assert_same
from tests.trainer.support.quantised import Quantised
from tests.trainer.support.same_group import group_of_one

SIDE = 512
"""Width of square matrices, of 1 MiB each."""
LARGE = 1 << 20
"""Bytes of the smallest weight that may be in a file of its own."""


class Normalised(Quantised):
    """A quantised model with running statistics."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(side=SIDE, seed=seed)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, rows: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.adapter(self.embedding(rows))))


def new_run(*, seed: int = 0) -> TrainState:
    model = Normalised(seed=seed)
    optimizer = torch.optim.AdamW(model.parameters())
    parts = {"model": model, "optimizer": optimizer}
    run = TrainState(parts, seed=0, device=torch.device("cpu"))
    run.choose_samples(1000)
    return run


def model_of(run: TrainState) -> Normalised:
    return cast(Normalised, run.models[0])


def advance(run: TrainState) -> None:
    """Take one more step; its numbers depend on the step alone."""
    torch.manual_seed(run.position.step)
    run.models[0](torch.randint(SIDE, (8,))).square().sum().backward()
    run.updates.complete_step(8)


def saver(root: Path, *, keep: int = 2) -> Saver:
    return Saver(
        CheckpointDirectory(root, keep=keep),
        Options.parse([]),
        stop=StopSignal(within_seconds=60.0),
    )


def save(one: Saver, run: TrainState, *, steps: int = 1) -> None:
    for _ in range(steps):
        advance(run)
    one.save_for_certain(run)


def restored(root: Path, *, seed: int = 1) -> TrainState:
    """Return a run with other weights that has loaded the newest checkpoint."""
    run = new_run(seed=seed)
    stored = CheckpointDirectory(root, keep=2).load()
    assert stored is not None
    run.load_state_dict(stored.unpack())
    return run


def assert_same_run(one: TrainState, other: TrainState) -> None:
    assert_same(plain(one), plain(other))


def plain(run: TrainState) -> dict[str, Any]:
    """Return the state, with the model's weights in a plain dictionary."""
    state = run.state_dict()
    return state | {"model": dict(state["model"])}


def frozen_file(root: Path) -> Path:
    [path] = root.glob("frozen-*.pt")
    return path


def state_file(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}" / "state.pt"


def in_state(root: Path, step: int) -> dict[str, Tensor]:
    """Return the model's tensors that are in the checkpoint itself."""
    model: dict[str, Tensor] = torch.load(state_file(root, step), weights_only=True)["model"]
    return model


def test_frozen_weights_are_written_once(tmp_path: Path) -> None:
    run, one = new_run(), saver(tmp_path)
    save(one, run)
    first = frozen_file(tmp_path).stat()
    assert first.st_size > 2 * LARGE, "packed weights and the embedding"
    save(one, run)
    assert frozen_file(tmp_path).stat().st_mtime_ns == first.st_mtime_ns
    assert all(state_file(tmp_path, step).stat().st_size < LARGE for step in (1, 2))
    assert not {"packed", "embedding.weight"} & in_state(tmp_path, 2).keys()
    manifest = Manifest.read(tmp_path / "step-00000002")
    assert manifest.format_version == 2
    assert manifest.frozen is not None
    assert manifest.frozen.content == storage.read_content(frozen_file(tmp_path), Transfer(1))
    assert manifest.frozen.name == frozen_file(tmp_path).name


def test_the_copy_for_a_save_beside_training_leaves_them_out(tmp_path: Path) -> None:
    run, one = new_run(), saver(tmp_path)
    advance(run)
    one.save(run)
    one.close()
    assert sum(buffer.nbytes for _, buffer in one._snapshot._buffers) < LARGE
    assert_same_run(restored(tmp_path), run)


def test_a_restored_run_continues_to_the_bit(tmp_path: Path) -> None:
    run = new_run()
    save(saver(tmp_path), run, steps=3)
    other = restored(tmp_path)
    assert_same_run(other, run)
    for each in (run, other):
        for _ in range(3):
            advance(each)
    assert_same_run(other, run)


def test_a_restarted_job_does_not_write_them_again(tmp_path: Path) -> None:
    save(saver(tmp_path), new_run())
    first = frozen_file(tmp_path).stat()
    for _ in range(2):
        run = restored(tmp_path)
        save(saver(tmp_path), run)
        assert frozen_file(tmp_path).stat().st_mtime_ns == first.st_mtime_ns
        assert_same_run(restored(tmp_path), run)


# Weights that are not frozen.


def test_without_large_frozen_weights_nothing_changes(tmp_path: Path) -> None:
    run = new_run()
    model_of(run).embedding.requires_grad_(True)
    del model_of(run).packed
    save(saver(tmp_path), run)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    manifest = json.loads((tmp_path / "step-00000001" / "manifest.json").read_text())["content"]
    assert manifest["format_version"] == 1
    assert set(manifest) == {"format_version", "step", "saved_at", "state_bytes", "state_sha256"}
    assert set(in_state(tmp_path, 1)) == set(model_of(run).state_dict())


def unfreeze(model: Normalised) -> None:
    model.embedding.requires_grad_(True)


def scale_uncounted(model: Normalised) -> None:
    model.embedding.weight.data.mul_(0.9)


def write_one_value(model: Normalised) -> None:
    with torch.no_grad():
        model.embedding.weight[5, 7] += 1


def replace(model: Normalised) -> None:
    model.embedding.weight = nn.Parameter(model.embedding.weight + 1, requires_grad=False)


def exchange_data(model: Normalised) -> None:
    model.embedding.weight.data = model.embedding.weight.data + 1


def change_buffer(model: Normalised) -> None:
    model.packed[5, 7] += 1


@pytest.mark.parametrize(
    "change", [unfreeze, scale_uncounted, write_one_value, replace, exchange_data, change_buffer]
)
def test_a_weight_that_begins_to_change_is_in_the_next_checkpoint(
    change: Callable[[Normalised], None], tmp_path: Path
) -> None:
    run, one = new_run(), saver(tmp_path)
    save(one, run)
    first = frozen_file(tmp_path).stat()
    change(model_of(run))
    save(one, run)
    names = ["embedding.weight", "packed"]
    changed, frozen = reversed(names) if change is change_buffer else names
    assert changed in in_state(tmp_path, 2)
    assert frozen not in in_state(tmp_path, 2)
    assert frozen_file(tmp_path).stat().st_mtime_ns == first.st_mtime_ns, "it holds the rest"
    assert_same_run(restored(tmp_path), run)
    save(one, run)
    assert changed in in_state(tmp_path, 3), "it may change again"
    assert_same_run(restored(tmp_path), run)


def test_if_all_weights_have_changed_no_file_is_named(tmp_path: Path) -> None:
    run, one = new_run(), saver(tmp_path, keep=1)
    save(one, run)
    scale_uncounted(model_of(run))
    change_buffer(model_of(run))
    save(one, run)
    assert Manifest.read(tmp_path / "step-00000002").format_version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


@pytest.fixture
def alone() -> Iterator[Group]:
    with group_of_one() as group:
        yield group


def test_an_average_that_changes_before_the_first_save_is_not_frozen(
    tmp_path: Path, alone: Group
) -> None:
    run = new_run()
    one = saver(tmp_path)
    CheckpointManager(one, 0).agree(run, alone)
    advance(run)
    scale_uncounted(model_of(run))
    one.save_for_certain(run)
    assert "embedding.weight" in in_state(tmp_path, 1)
    assert frozen_file(tmp_path).stat().st_size < 1.5 * LARGE, "the packed weights alone"
    resumed = new_run(seed=1)
    CheckpointManager(saver(tmp_path), 0).agree(resumed, alone)
    assert_same_run(resumed, run)


def test_tied_and_shared_memory(tmp_path: Path) -> None:
    """Tied weights are stored once; a view of a larger memory would store all of it."""
    run, one = new_run(), saver(tmp_path)
    model = model_of(run)
    model.head = model.embedding.weight
    model.register_buffer("view", torch.zeros(4, SIDE, SIDE)[1])
    save(one, run)
    assert frozen_file(tmp_path).stat().st_size < 3 * LARGE
    assert {"head", "embedding.weight"}.isdisjoint(in_state(tmp_path, 1))
    assert "view" in in_state(tmp_path, 1)


def test_a_weight_that_changes_while_it_is_written_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, one = new_run(), saver(tmp_path)
    write = FrozenWeights.write

    def write_and_change(self: FrozenWeights, file: Recorder) -> None:
        write(self, file)
        scale_uncounted(model_of(run))

    with monkeypatch.context() as patch:
        patch.setattr(FrozenWeights, "write", write_and_change)
        advance(run)
        with pytest.raises(DamagedError, match=r"while they were written: model\.embedding\.weigh"):
            one.save_for_certain(run)
    assert list(tmp_path.iterdir()) == []
    save(one, run)
    assert_same_run(restored(tmp_path), run)


# Damaged and deleted files.


def lose(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def change_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lose, "is missing"),
        (truncate, r"has \d+ bytes instead of \d+"),
        (change_a_byte, "does not match"),
    ],
)
def test_a_damaged_file_falls_back_to_the_checkpoint_before(
    damage: Callable[[Path], None], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()
    write_version_1(tmp_path, run, step=0)
    save(saver(tmp_path), run)
    damage(frozen_file(tmp_path))
    directory = CheckpointDirectory(tmp_path, keep=2)
    with caplog.at_level(logging.WARNING):
        stored = directory.load()
    assert stored is not None
    assert stored.unpack()["position"]["step"] == 0
    [line] = caplog.messages
    assert re.fullmatch(
        rf"checkpoint {tmp_path}/step-00000001 is damaged \(.*frozen-\w+\.pt {reason}\): "
        "trying the previous one",
        line,
    )
    directory.look()
    assert directory.newest is not None
    assert directory.newest.step == (1 if damage is change_a_byte else 0), "by sizes alone"
    again = new_run(seed=1)
    again.load_state_dict(stored.unpack())
    save(saver(tmp_path), again, steps=2)
    assert_same_run(restored(tmp_path), again)


def write_version_1(root: Path, run: TrainState, *, step: int) -> None:
    """Save like earlier releases, with everything in one file."""
    state = run.state_dict()
    directory = CheckpointDirectory(root, keep=2)
    directory.save(partial(torch.save, state), step=step, transfer=Transfer(1))
    assert Manifest.read(root / f"step-{step:08d}").format_version == 1


def test_a_file_that_no_checkpoint_names_is_deleted(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("frozen-notes.pt", "frozen-0123456789abcdef.pt.bak")]
    for path in others:
        path.write_text("mine")
    left = tmp_path / "frozen-0123456789abcdef.pt"
    left.write_text("of a process that was killed")
    save(saver(tmp_path), new_run(seed=0))
    assert not left.exists()
    [old] = set(tmp_path.glob("frozen-*.pt")) - set(others)
    run = new_run(seed=1)
    one = saver(tmp_path, keep=2)
    save(one, run, steps=2)
    assert old.exists(), "the first checkpoint is kept, and names it"
    save(one, run)
    assert not old.exists()
    assert all(path.exists() for path in others)
    assert_same_run(restored(tmp_path, seed=2), run)


def test_a_superseded_process_neither_writes_nor_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Process(tmp_path, 1), Process(tmp_path, 2)
    old.lead(1)
    write = FrozenWeights.write

    def write_late(self: FrozenWeights, file: Recorder) -> None:
        write(self, file)
        new.lead(2)

    monkeypatch.setattr(FrozenWeights, "write", write_late)
    run = new_run()
    advance(run)
    with pytest.raises(SupersededError):
        old.saver.save_for_certain(run)
    assert [path.name for path in tmp_path.iterdir()] == ["saved-by-7d1f-0-2"]
    save(new.saver, run)
    named = frozen_file(tmp_path)
    left = tmp_path / "frozen-0123456789abcdef.pt"
    left.write_text("the newer process writes it")
    with pytest.raises(SupersededError):
        frozen_files.FrozenFiles(tmp_path, Claim(tmp_path, lambda: old.placement).check).prune(
            {named.name}
        )
    assert left.exists()


def test_a_save_killed_at_any_point_leaves_a_complete_checkpoint(
    tmp_path: Path,
) -> None:
    """The old one names another file of frozen weights, which the save deletes at its end."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.trainer.checkpoints.killed_saves", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["old"] > 2, found
    assert found["old with both files"] > 2, "killed between the frozen file and the manifest"
    assert found["new with both files"] > 2, "killed before the old file was deleted"
    assert found["new"] > 0, found
