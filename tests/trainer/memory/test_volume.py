"""The names of snapshot files, and the settings of their volume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.volume import LARGEST_STEP, Key, SnapshotName, Volume
from hypothesis import given
from hypothesis import strategies as st

ENV = {"DDP_MEMORY_DIR": "/ddp-memory", "DDP_MEMORY_BYTES": "4096", "DDP_MEMORY_COPIES": "1"}


@st.composite
def names(draw: st.DrawFn) -> SnapshotName:
    world_size = draw(st.integers(1, 9_999_999))
    key = Key(draw(st.integers(0, 9_999_999_999)), draw(st.integers(0, LARGEST_STEP)))
    rank = draw(st.integers(0, world_size - 1))
    return SnapshotName(key=key, rank=rank, world_size=world_size, replicated=draw(st.booleans()))


@given(names())
def test_a_name_is_read_as_it_was_written(name: SnapshotName) -> None:
    assert SnapshotName.parse(str(name)) == name


@given(st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3}){3}-(sharded|replicated)\.snapshot", fullmatch=True))
def test_each_snapshot_has_one_name(text: str) -> None:
    found = SnapshotName.parse(text)
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "part",
        "free",
        "1-2-3-4-sharded",
        "1-2-3-4-sharded.part",
        "1-2-3-4-sharded.snapshot\n",
        "../1-2-3-4-sharded.snapshot",
        "01-2-3-4-sharded.snapshot",
        "1-2-4-4-sharded.snapshot",
        "1-2-0-0-sharded.snapshot",
        f"1-{LARGEST_STEP + 1}-3-4-sharded.snapshot",
        "1-2-3-4-other.snapshot",
        "1-٢-3-4-sharded.snapshot",
    ],
)
def test_other_names_are_no_snapshots(text: str) -> None:
    assert SnapshotName.parse(text) is None


def test_a_job_without_memory_checkpoints_has_no_volume() -> None:
    assert Volume.from_env({}) is None


def test_every_rank_has_two_slots_for_itself_and_two_for_each_copy() -> None:
    volume = Volume.from_env({**ENV, "DDP_MEMORY_BYTES": "8000"})
    assert volume == Volume(directory=Path("/ddp-memory"), size=8000, copies=1)
    assert volume.share(local_world_size=2, replicated=False) == 1000
    assert volume.needed(1000, local_world_size=2, replicated=False) == 8000
    assert volume.share(local_world_size=2, replicated=True) == 4000


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DDP_MEMORY_BYTES", ""),
        ("DDP_MEMORY_BYTES", "1Gi"),
        ("DDP_MEMORY_COPIES", "-1"),
        ("DDP_MEMORY_COPIES", "9"),
    ],
)
def test_wrong_settings_are_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(variable)):
        Volume.from_env({**ENV, variable: value})
