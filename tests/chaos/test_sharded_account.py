"""The checks of sharded trainings find what is wrong, and allow steps that are taken twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.sharded_account import complaints

Notes = dict[str, list[dict[str, Any]]]

CALM: Notes = {
    "starts": [{"step": 0}],
    "steps": [{"step": step, "loss": f"loss {step}"} for step in (1, 2, 3)],
    "ends": [{"digest": "same"}],
}


def noted(folder: Path, notes: Notes) -> Path:
    """Write the notes of rank 0."""
    folder.mkdir()
    for file, lines in notes.items():
        text = "".join(json.dumps({"rank": 0, **line}) + "\n" for line in lines)
        (folder / f"{file}.0").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, None),
        ({"steps": [*CALM["steps"][:2], *CALM["steps"][1:]]}, None),
        ({"steps": CALM["steps"][1:], "starts": [{"step": 0}, {"step": 1}]}, None),
        ({"steps": [*CALM["steps"], {"step": 2, "loss": "loss 3"}]}, "had losses"),
        ({"starts": [{"step": 0}, {"step": 0}]}, "started at steps"),
        ({"ends": [{"digest": "another"}]}, "ended with"),
        ({"ends": []}, "ended with"),
    ],
)
def test_complaints(change: Notes, found: str | None, tmp_path: Path) -> None:
    calm, disturbed = noted(tmp_path / "calm", CALM), noted(tmp_path / "other", CALM | change)
    told = list(complaints(disturbed, calm))
    assert len(told) == (found is not None)
    assert found is None or found in told[0]
