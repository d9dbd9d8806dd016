"""Dumps of ranks are bounded, also if a rank writes other files in their place."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ddp_trainer.flight_recorder.dump import MAX_BYTES
from ddp_trainer.telemetry.requests import dumps

RANKS = {0, 1, 2, 3}


@pytest.fixture
def status(tmp_path: Path) -> Path:
    return tmp_path / "status.json"


@pytest.fixture
def prefix(status: Path) -> str:
    found = dumps.prepare(status, {})
    assert found.keys() == {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
    [prefix] = {*found.values()}
    return prefix


def test_dumps_are_shown_until_other_processes_start(status: Path, prefix: str) -> None:
    assert not dumps.exist(status, RANKS)
    for rank in (1, 3):
        Path(f"{prefix}{rank}").write_bytes(b"dump %d" % rank)
    assert dumps.exist(status, RANKS)
    assert dict(dumps.read(status, RANKS)) == {1: b"dump 1", 3: b"dump 3"}
    dumps.clear(status)
    assert not dumps.exist(status, RANKS)
    assert dict(dumps.read(status, RANKS)) == {}


def test_folder_that_the_user_chose_is_kept(status: Path) -> None:
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        assert dumps.prepare(status, {name: "/traces/rank_"}) == {}
    assert not dumps.exist(status, RANKS)


def test_only_regular_files_of_bounded_size_are_read(status: Path, prefix: str) -> None:
    os.mkfifo(f"{prefix}0")
    Path(f"{prefix}1").symlink_to("/etc/passwd")
    Path(f"{prefix}2").mkdir()
    assert not dumps.exist(status, RANKS)
    with Path(f"{prefix}3").open("wb") as large:
        large.truncate(4 * MAX_BYTES)
    [(rank, content)] = dumps.read(status, RANKS)
    assert (rank, len(content)) == (3, MAX_BYTES + 1)


def test_a_link_in_place_of_the_folder_is_not_followed(status: Path, prefix: str) -> None:
    folder = Path(prefix).parent
    folder.rmdir()
    (elsewhere := status.parent / "elsewhere").mkdir()
    (elsewhere / "rank_1").write_bytes(b"dump")
    folder.symlink_to(elsewhere)
    assert not dumps.exist(status, RANKS)
    dumps.clear(status)
    assert (elsewhere / "rank_1").exists()


def test_dumps_of_nested_ranks_are_ignored(status: Path, prefix: str) -> None:
    for rank in (3, 4):
        Path(f"{prefix}{rank}").write_bytes(b"dump")
    assert not dumps.exist(status, RANKS)
    assert dict(dumps.read(status, RANKS)) == {}


def test_old_dump_is_ignored(status: Path, prefix: str) -> None:
    path = Path(f"{prefix}1")
    path.write_bytes(b"dump")
    long_ago = time.time() - dumps._RECENT_SECONDS - 60
    os.utime(path, (long_ago, long_ago))
    assert not dumps.exist(status, RANKS)
    assert dict(dumps.read(status, RANKS)) == {}
