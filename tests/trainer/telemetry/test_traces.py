"""Traces of hanging ranks are bounded. `launcher/test_hangs.py` has them from real ranks."""

from __future__ import annotations

import os
from pathlib import Path

from ddp_trainer.telemetry.hook import sitecustomize
from ddp_trainer.telemetry.requests import traces


def test_newest_operations_of_each_group_are_kept() -> None:
    def entry(number: int, group: str, state: str) -> dict[str, object]:
        return {"record_id": number, "pg_id": 0, "process_group": [group, ""], "state": state}

    done = [entry(i, "0", "completed") for i in range(10)]
    other = [entry(10, "1", "completed")]
    waiting = [entry(i, "0", "scheduled") for i in range(11, 20)]
    kept = sitecustomize._newest([*done, *other, *waiting])
    assert [each["record_id"] for each in kept] == [6, 7, 8, 9, 10, 11, 12, 13, 14, 19]


def test_only_small_regular_files_are_read_as_dumps(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "large").write_bytes(b"x" * (traces._MOST_BYTES + 1))
    for name in ("pipe", "link", "large", "missing"):
        assert traces._content(tmp_path / name) == ""
    assert not traces._ask(str(tmp_path / "pipe"), str(tmp_path / "answer"))
