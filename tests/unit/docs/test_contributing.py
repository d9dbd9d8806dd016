"""CONTRIBUTING.md and tests/README.md name only files and folders that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    *("protocol/ddp_protocol", "operator/ddp_operator", "client/ddp_client"),
    "trainer-image/ddp_trainer",
)
STARTS = (ROOT, *(ROOT / package for package in PACKAGES))
TEXT, _, MAP = (ROOT / "CONTRIBUTING.md").read_text().partition("\n| change | place |\n|---|---|\n")
PLACEHOLDERS = {"a/b/c.py", "tests/unit/a"}
OTHERS = ("/", "build/")
"""Paths on servers, and results of builds."""
PATH = re.compile(r"`([\w./-]+)`")


@pytest.mark.parametrize("row", MAP.strip().splitlines())
def test_map_names_existing_places(row: str) -> None:
    _, _, places, _ = row.split("|")
    starts = list(STARTS)
    paths = PATH.findall(places)
    assert paths
    for path in paths:
        found = [start / path for start in starts if (start / path).exists()]
        assert found, f"{path} does not exist; correct the map in CONTRIBUTING.md"
        starts += [found[0].parent, found[0]]


def test_texts_name_existing_files() -> None:
    tests = ROOT / "tests"
    readme = (tests / "README.md").read_text()
    for text, starts in ((TEXT, STARTS), (readme, (ROOT, tests))):
        paths = {path for path in PATH.findall(text) if "/" in path} - PLACEHOLDERS
        named = {path for path in paths if not path.startswith(OTHERS)}
        assert named
        missing = {path for path in named if not any((start / path).exists() for start in starts)}
        assert not missing
