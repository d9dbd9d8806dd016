"""The files of a pod's memory volume."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from ddp_trainer.launcher.memory.store import NoRoomError, Store, WrongPieceError
from ddp_trainer.memory.volume import FREE, PART, SnapshotName

from tests.trainer.launcher.memory.files import (
    content_of,
    flip,
    names_in,
    save,
    snapshot,
    volume_at,
)

NAME = snapshot(5, 1)
CONTENT = content_of(NAME)


def receive_all(store: Store, name: SnapshotName, *, restored: bool = False) -> None:
    content = content_of(name)
    store.receive(name, content, offset=0, total=len(content), restored=restored)


def test_only_whole_snapshots_with_valid_names_are_listed(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)
    save(volume, 0, NAME)
    receive_all(store, snapshot(5, 0))
    receive_all(store, snapshot(4, 1), restored=True)
    own = volume.own(0)
    for junk in (PART, FREE, "x.snapshot", "1-5-9-2-sharded.snapshot"):
        (own / junk).write_bytes(b"x")
    (own / str(snapshot(6, 1))).symlink_to(own / FREE)
    (own / str(snapshot(7, 1))).mkdir()
    (tmp_path / "own" / "file").touch()
    (tmp_path / "own" / "1").symlink_to(own)
    found = {str(file.name): (file.local_rank, file.size) for file in store.files()}
    assert found == {
        str(NAME): (0, 1000),
        str(snapshot(5, 0)): (None, 1000),
        str(snapshot(4, 1)): (None, 1000),
    }


def test_rank_gets_the_memory_of_released_files_back(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)
    for step in (5, 6):
        save(volume, 0, snapshot(step, 1))
    receive_all(store, snapshot(5, 0))
    store.drop(lambda _: True)
    assert [path.name for path in volume.own(0).iterdir()] == [FREE]
    assert not [*volume.received.iterdir()]


def test_copies_can_be_dropped_alone(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)
    save(volume, 0, NAME)
    receive_all(store, snapshot(5, 0))
    store.receive(snapshot(6, 0), b"x", offset=0, total=2)
    store.drop(lambda _: True, only_of_other_pods=True)
    assert names_in(store) == {str(NAME)}
    with pytest.raises(WrongPieceError, match="begins at 0"):
        store.receive(snapshot(6, 0), b"x", offset=1, total=2)


def test_open_snapshot_keeps_its_content_after_its_release(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)
    save(volume, 0, NAME)
    file = store.find(NAME)
    assert file is not None
    with store.opened(file) as descriptor:
        store.drop(lambda _: True)
        save(volume, 0, snapshot(6, 1))
        assert os.pread(descriptor, 2000, 0) == CONTENT
    save(volume, 0, NAME)
    store.drop(lambda one: one == NAME)
    assert (volume.own(0) / FREE).exists()


def test_the_memory_of_ranks_that_died_in_a_save_is_used_again(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    for local_rank in range(2):
        volume.own(local_rank).mkdir(parents=True)
        (volume.own(local_rank) / PART).write_bytes(b"x")
    (volume.own(1) / FREE).write_bytes(b"yy")
    Store(volume).reclaim()
    left = [path.read_bytes() for path in tmp_path.glob("own/*/*")]
    assert sorted(left) == [b"x", b"yy"]
    assert not [*tmp_path.glob(f"own/*/{PART}")]


@pytest.mark.parametrize("restored", [False, True])
def test_a_snapshot_arrives_in_pieces(tmp_path: Path, restored: bool) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)

    def receive(begin: int, end: int) -> int:
        piece = CONTENT[begin:end]
        return store.receive(NAME, piece, offset=begin, total=1000, restored=restored)

    assert receive(0, 0) == 0
    assert receive(0, 400) == 400
    assert receive(0, 300) == 400, "a request that was sent again"
    with pytest.raises(WrongPieceError, match="begins at 400 of 1000"):
        receive(500, 1000)
    with pytest.raises(WrongPieceError):
        store.receive(NAME, CONTENT, offset=0, total=999, restored=restored)
    with pytest.raises(WrongPieceError):
        store.receive(NAME, CONTENT, offset=400, total=1000, restored=restored)
    assert store.find(NAME) is None
    assert receive(400, 1000) == 1000
    file = store.find(NAME)
    assert file is not None
    assert file.path.read_bytes() == CONTENT
    assert file.path.parent == (volume.restored if restored else volume.received)
    assert receive(0, 300) == 1000


def test_new_launcher_removes_incomplete_copies(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    Store(volume).receive(NAME, b"x", offset=0, total=2)
    assert [*volume.received.iterdir()]
    assert Store(volume).receive(NAME, b"", offset=0, total=2) == 0
    assert len([*volume.received.iterdir()]) == 1


def test_a_rank_has_two_copies_at_most(tmp_path: Path) -> None:
    store = Store(volume_at(tmp_path))
    receive_all(store, snapshot(5, 1))
    store.receive(snapshot(6, 1), b"", offset=0, total=10)
    store.receive(snapshot(6, 1), b"", offset=0, total=10)
    with pytest.raises(NoRoomError, match="2 snapshots of rank 1"):
        store.receive(snapshot(7, 1), b"", offset=0, total=10)
    store.receive(snapshot(7, 0), b"", offset=0, total=10)


def test_copies_have_their_share_of_the_volume(tmp_path: Path) -> None:
    store = Store(volume_at(tmp_path, size=3000, copies=2))
    receive_all(store, snapshot(5, 0))
    too_few = "2000 bytes for copies are too few: raise sizeLimit"
    with pytest.raises(NoRoomError, match=too_few):  # half of them are for the next step
        store.receive(snapshot(5, 1), b"", offset=0, total=1)
    store.receive(snapshot(6, 1), b"", offset=0, total=1000)
    with pytest.raises(NoRoomError, match=too_few):
        store.receive(snapshot(7, 1), b"", offset=0, total=1)
    receive_all(store, snapshot(7, 1), restored=True)


def test_full_volume_first_takes_free_files_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = volume_at(tmp_path)
    store = Store(volume)
    save(volume, 0, NAME)
    store.drop(lambda _: True)
    free, write = volume.own(0) / FREE, os.pwrite

    def full(descriptor: int, piece: bytes, offset: int) -> int:
        if free.exists():
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoRoomError, match="the volume is full"):
        receive_all(store, snapshot(5, 0))
    assert free.exists(), "a copy takes no memory from ranks"
    assert not [*volume.received.iterdir()]
    receive_all(store, snapshot(5, 0), restored=True)
    assert store.find(snapshot(5, 0))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "copies").touch()
    with pytest.raises(OSError, match="copies"):
        Store(volume_at(tmp_path))


def test_a_snapshot_that_is_released_while_it_arrives_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = Store(volume_at(tmp_path)), os.pwrite

    def release(descriptor: int, piece: bytes, offset: int) -> int:
        store.drop(lambda _: True)
        store.receive(NAME, b"", offset=0, total=1000)  # and begins again
        return write(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", release)
    with pytest.raises(WrongPieceError, match="was released"):
        store.receive(NAME, CONTENT, offset=0, total=1000)
    assert store.find(NAME) is None


def test_any_flipped_byte_of_a_copy_is_noticed(tmp_path: Path) -> None:
    store, random = Store(volume_at(tmp_path)), Random(1)
    for _ in range(100):
        store.receive(NAME, CONTENT[:400], offset=0, total=1000)
        store.receive(NAME, CONTENT[300:], offset=300, total=1000)
        assert not store.drop_damaged(NAME)
        flip(tmp_path / "copies" / str(NAME), random)
        assert store.drop_damaged(NAME)
        assert store.find(NAME) is None


def test_only_what_was_received_is_checked(tmp_path: Path) -> None:
    volume = volume_at(tmp_path)
    save(volume, 0, NAME)
    assert not Store(volume).drop_damaged(NAME)
    assert not Store(volume).drop_damaged(snapshot(6, 1))
