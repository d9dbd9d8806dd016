import os
from pathlib import Path

import pytest
from ddp_trainer.flight_recorder import directory
from ddp_trainer.flight_recorder.directory import DirectoryError, reduce_directory

from tests.unit.hang.traces.recorder import Call, Form, Ranks

RANKS = Ranks.same({"0": (0, 1, 2)}, [Call("0")]).run()


def test_files_that_end_with_a_rank_are_read(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(RANKS.dump(0))
    (tmp_path / "rank1.json").write_bytes(RANKS.dump(1, Form(as_json=True)))
    (tmp_path / "2").write_bytes(RANKS.dump(2))
    (tmp_path / "README.md").write_text("no dump")
    (tmp_path / "folder_3").mkdir()
    os.mkfifo(tmp_path / "pipe_4")
    found = reduce_directory(tmp_path)
    assert [each["rank"] for each in found["ranks"]] == [0, 1, 2]
    assert not found["unreadable"]


def test_damaged_dump_is_named_and_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(RANKS.dump(0))
    (tmp_path / "rank_1").write_bytes(RANKS.dump(1)[:-20])
    (tmp_path / "rank_2").symlink_to(tmp_path / "nowhere")
    found = reduce_directory(tmp_path)
    assert [each["rank"] for each in found["ranks"]] == [0]
    assert found["unreadable"] == {"rank_1": "it is cut off"}


def test_reading_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_SECONDS", -1)
    (tmp_path / "rank_0").write_bytes(RANKS.dump(0))
    with pytest.raises(DirectoryError, match="rank_0: not read within -1 s: give fewer files"):
        reduce_directory(tmp_path)


def test_a_directory_without_dumps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DirectoryError, match="no file name ends with a rank"):
        reduce_directory(tmp_path)
    with pytest.raises(DirectoryError, match="No such file"):
        reduce_directory(tmp_path / "nowhere")
    (tmp_path / "rank_1").write_text("text")
    with pytest.raises(DirectoryError, match="rank_1: it is neither a pickle nor JSON; give a"):
        reduce_directory(tmp_path)
    (tmp_path / "other_1").write_text("text")
    with pytest.raises(DirectoryError, match="other_1 and rank_1 are both of rank 1; remove one"):
        reduce_directory(tmp_path)
    (tmp_path / "other_1").unlink()
    monkeypatch.setattr(directory, "_MOST_FILES", 0)
    with pytest.raises(DirectoryError, match="more than 0 dumps"):
        reduce_directory(tmp_path)
