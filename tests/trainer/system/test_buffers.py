"""States of any size are loaded without a copy that Python makes under its lock."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.storage import Transfer
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import Reader, allocate, load
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.trainer.support.pods import assert_same

FEW_BYTES = 6 << 20
"""Enough for chunks of a file; a small part of the state."""


def new_run() -> TrainState:
    model = nn.Linear(2048, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return TrainState({"model": model, "optimizer": optimizer}, seed=0, device=torch.device("cpu"))


def saved(state: object) -> memoryview:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getbuffer()


@contextmanager
def little_of_pythons_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FEW_BYTES


def test_large_state_is_never_a_python_object(tmp_path: Path) -> None:
    run, other = new_run(), new_run()
    run.models[0](torch.ones(1, 2048)).sum().backward()
    run.updates.complete_step(1)
    state = saved(run.full_state_dict())
    assert len(state) > 5 * FEW_BYTES
    with little_of_pythons_memory():
        other.load_state_dict(load(state))
    assert_same(other.state_dict(), run.state_dict())
    directory = CheckpointDirectory(tmp_path, keep=1)
    directory.save(lambda file: file.write(state), step=1, transfer=Transfer(1))
    with little_of_pythons_memory():
        loaded = CheckpointDirectory(tmp_path, keep=1).load()
    assert loaded is not None
    assert loaded.state == state


@given(st.binary(max_size=400))
def test_all_of_a_memory_is_read(whole: bytes) -> None:
    assert Reader(memoryview(whole)).read() == whole


def test_a_reader_is_a_file() -> None:
    reader, file = Reader(b"0123456789"), io.BytesIO(b"0123456789")
    for offset, whence, count in [(3, 0, 4), (-2, 1, 2), (-3, 2, 9), (20, 0, 5)]:
        assert reader.seek(offset, whence) == file.seek(offset, whence)
        assert reader.read(count) == file.read(count)
        assert reader.tell() == file.tell()


def test_nothing_can_be_allocated() -> None:
    assert len(allocate(0)) == 0


@pytest.mark.parametrize("size", [5, 4096])
def test_torch_reads_what_it_wrote(size: int) -> None:
    state = {"one": torch.arange(size), "two": {"three": 3.5}}
    assert_same(load(saved(state)), state)
