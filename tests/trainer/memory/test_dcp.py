"""`torch.distributed.checkpoint` saves to memory and loads from it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer import memory
from ddp_trainer.memory import saving
from ddp_trainer.memory.dcp import Reader, Writer, _box, _without
from ddp_trainer.memory.restoration import MismatchError
from ddp_trainer.settings.environment import Environment
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.ports import free_port
from tests.trainer.memory.app import App
from tests.trainer.memory.pods import launcher, variables
from tests.trainer.memory.sameness import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
_ENDS = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """The environment of this process, as of a rank."""
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DDP_STATUS_PORT", str(free_port()))
    saving._saver.cache_clear()
    yield Environment.from_env(os.environ)
    saving._saver.cache_clear()


def app() -> App:
    model = nn.Linear(2, 3)
    return App(model, torch.optim.AdamW(model.parameters()))


def reader_of(step: int, environment: Environment, folder: Path) -> Reader:
    """Read the snapshot of a step, as after a restart."""
    path = folder / "own" / "0" / f"1-{step}-0-1-sharded.snapshot"
    with launcher(environment, (200, {"path": str(path), "step": step, "generation": 1})):
        return Reader()


def test_objects_and_tensors_continue_from_what_was_saved(
    environment: Environment, tmp_path: Path
) -> None:
    first, weights = app(), torch.rand(3)
    first.model(torch.rand(2)).sum().backward()
    first.optimizer.step()
    writer = Writer(4)
    dcp_save({"app": first, "weights": weights, "epoch": 2}, storage_writer=writer)
    assert writer.saved

    other, zeros = app(), torch.zeros(3)
    state: dict[str, Any] = {"app": other, "weights": zeros, "epoch": 0}
    reader = reader_of(4, environment, tmp_path)
    assert reader.step == 4
    dcp_load(state, storage_reader=reader)
    assert same(other.state_dict(), first.state_dict())
    assert state["weights"] is zeros
    assert same(zeros, weights)
    assert state["epoch"] == 2


def test_a_part_of_the_state_may_be_loaded(environment: Environment, tmp_path: Path) -> None:
    weights = torch.rand(2, 3)
    dcp_save({"weights": weights, "epoch": 2}, storage_writer=Writer(1))
    zeros = torch.zeros(2, 3)
    dcp_load({"weights": zeros}, storage_reader=reader_of(1, environment, tmp_path))
    assert same(zeros, weights)


def test_without_a_snapshot_the_script_uses_its_checkpoint(environment: Environment) -> None:
    with launcher(environment, (200, {"reason": "none"})):
        reader = Reader()
    assert reader.step is None
    with pytest.raises(CheckpointException, match=r"only if Reader\.step is set"):
        dcp_load({"epoch": 1}, storage_reader=reader)


def test_without_memory_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_MEMORY_DIR", raising=False)
    saving._saver.cache_clear()
    writer = Writer(1)
    dcp_save({"epoch": 1}, storage_writer=writer)
    assert not writer.saved
    assert Reader().step is None


@pytest.mark.usefixtures("environment")
def test_part_that_cannot_be_saved_is_named() -> None:
    with pytest.raises(CheckpointException, match=r'state\["objects"\]\["path"\].*PosixPath'):
        dcp_save({"path": Path("/")}, storage_writer=Writer(1))


@pytest.mark.usefixtures("environment")
def test_unsupported_options_are_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint_id is 'x': leave it out"):
        dcp_save({"epoch": 1}, storage_writer=Writer(1), checkpoint_id="x")
    with pytest.raises(ValueError, match="checkpoint_id is 'x': leave it out"):
        dcp_load({"epoch": 1}, storage_reader=Reader.__new__(Reader), checkpoint_id="x")
    planner = DefaultSavePlanner(enable_plan_caching=True)
    dcp_save({"epoch": 1}, storage_writer=Writer(1), planner=planner)
    with pytest.raises(CheckpointException, match="enable_plan_caching=True: set it to False"):
        dcp_save({"epoch": 1}, storage_writer=Writer(2), planner=planner)


@pytest.mark.parametrize(
    ("saved", "wanted", "problem"),
    [
        (torch.zeros(3), torch.zeros(4), "Size mismatch"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64), "float32 in the snapshot"),
        (torch.zeros(3), 1, "Invalid checkpoint metadata"),
    ],
)
def test_another_state_is_refused(
    saved: object, wanted: object, problem: str, environment: Environment, tmp_path: Path
) -> None:
    dcp_save({"value": saved}, storage_writer=Writer(1))
    reader = reader_of(1, environment, tmp_path)
    with pytest.raises(CheckpointException, match=problem):
        dcp_load({"value": wanted}, storage_reader=reader)
    with pytest.raises(CheckpointException, match="Missing key"):
        dcp_load({"other": saved}, storage_reader=reader)


@pytest.mark.parametrize("state", [{"model": {}}, {"tensors": {"a": [3]}, "objects": {}}, 3])
def test_a_snapshot_of_another_writer_is_refused(
    state: object, environment: Environment, tmp_path: Path
) -> None:
    assert memory.save(1, state)
    with pytest.raises(MismatchError, match="load it with ddp_trainer"):
        reader_of(1, environment, tmp_path)


def cells(box: ChunkStorageMetadata) -> list[tuple[int, ...]]:
    ranges = [
        range(begin, begin + size) for begin, size in zip(box.offsets, box.sizes, strict=True)
    ]
    return list(itertools.product(*ranges))


@given(st.lists(st.tuples(_ENDS, _ENDS), max_size=3))
def test_a_box_without_a_hole_is_the_rest(both: list[tuple[list[int], list[int]]]) -> None:
    def box(number: int) -> ChunkStorageMetadata:
        ends = [each[number] for each in both]
        return _box([begin for begin, _ in ends], [end - begin for begin, end in ends])

    whole, hole = box(0), box(1)
    rest = [cell for part in _without(whole, hole) for cell in cells(part)]
    assert sorted(rest) == sorted(set(cells(whole)) - set(cells(hole)))
