"""Data is brought to a node once, whoever asks for it and whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ddp_trainer import workloads
from ddp_trainer.data.staging import Stage
from ddp_trainer.exit_codes import ConfigurationError, LostPeerError


def stage(folder: Path, *, timeout_seconds: float = 60.0) -> Stage:
    return Stage(folder / "node", local_rank=0, timeout_seconds=timeout_seconds)


def test_one_rank_builds_and_the_others_wait_for_it(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_text("content")
    built = []

    def build(source: Path, target: Path) -> None:
        built.append(target)
        target.write_text(source.read_text() * 2)

    with ThreadPoolExecutor(8) as ranks:
        asked = [ranks.submit(stage(tmp_path).bring, source, build=build) for _ in range(8)]
        places = {one.result() for one in asked}
    assert len(built) == 1
    assert [place.read_text() for place in places] == ["contentcontent"]
    assert stage(tmp_path).bring(source, build=build) in places
    assert len(built) == 1, "who comes later finds it"


def test_a_changed_source_is_brought_anew(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_text("old")
    first = stage(tmp_path).bring(source)
    source.write_text("newer")
    os.utime(source, ns=(1, 1))
    second = stage(tmp_path).bring(source)
    assert (first.read_text(), second.read_text()) == ("old", "newer")


def test_folders_keep_their_shape(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "file").write_bytes(b"\0\1")
    place = stage(tmp_path).bring(tmp_path / "data")
    assert (place / "deep" / "file").read_bytes() == b"\0\1"


def test_a_rank_that_dies_while_building_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_text("content")

    def half(source: Path, target: Path) -> None:
        target.write_text(source.read_text()[:3])
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        stage(tmp_path).bring(source, build=half)
    assert stage(tmp_path).bring(source).read_text() == "content"


def test_waiting_has_an_end(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_text("content")
    place = stage(tmp_path).bring(source)
    with place.with_name(f"{place.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LostPeerError, match=r"waited 0.3 s .*--stage-timeout-seconds"):
            stage(tmp_path, timeout_seconds=0.3).bring(source)


def test_a_missing_source_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--data .*/data is not there"):
        stage(tmp_path).bring(tmp_path / "data")


def test_gpt_builds_one_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("b", "a"):
        (tmp_path / "texts" / name).write_text(name * 400)
    build = workloads.builder("gpt")
    assert build is not None
    place = stage(tmp_path).bring(tmp_path / "texts", build=build)
    assert place.read_text() == "a" * 400 + "b" * 400
    for data in (place, tmp_path / "texts"):
        workload = workloads.load("gpt", {"data": str(data), "context": "8"})
        inputs, _ = workload.train.batch([0, 60])
        assert bytes(inputs.flatten().numpy()) == b"a" * 8 + b"b" * 8
    assert workloads.builder("digits") is None
