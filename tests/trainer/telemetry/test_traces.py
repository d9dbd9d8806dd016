"""Traces of hanging ranks are bounded. `launcher/test_hangs.py` has them from real ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ddp_trainer.telemetry.requests import traces

from tests.unit.hang.traces.recorder import Call, Ranks

RANKS = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 40)


def test_only_regular_files_are_read_as_dumps(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link", "missing"):
        assert traces._content(tmp_path / name) == b""
    assert not traces._ask(str(tmp_path / "pipe"), str(tmp_path / "answer"))


def test_invalid_dumps_are_left_out_and_the_others_reduced() -> None:
    written = [(0, b""), (1, b"text"), (2, RANKS.run().dump(2)), (3, b"\x80")]
    [(rank, reduced)] = traces._reduced(written, 4)
    assert rank == 2
    assert len(json.dumps(reduced)) < 1024


def test_reduced_dumps_share_a_limit_of_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    written = [(rank, RANKS.run().dump(rank)) for rank in range(4)]
    assert len(dict(traces._reduced(written, 4))) == 4
    assert dict(traces._reduced(written, 400)) == {}
    monkeypatch.setattr(traces, "_REDUCE_SECONDS", -1)
    assert dict(traces._reduced(written, 4)).keys() == {0}


def test_largest_ranks_fit_in_an_answer() -> None:
    """Without its dump, any rank takes few bytes."""
    frames = [("/site-packages/" + "x" * 300, "1" * 7, "x" * 300), ("/" + "x" * 300, "1" * 7, "f")]
    rank = traces.RankTrace(10**6, 10**6, problem="x" * 100, cause="stopped")
    shown = json.dumps({**rank.to_json(), **traces.place(frames)})
    assert len(shown) < traces._MOST_OTHER
