"""The slowest tests and files of a run, read from pytest's JUnit reports."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

SHOWN = 20
"""Entries in each list."""
_FILE = re.compile(r"(.*?\btest_\w+)(?:\..*)?")
"""JUnit's class name is the dotted path of the file, then perhaps of a class."""


def slowest(lane: str, reports: Iterable[Path], shown: int = SHOWN) -> Iterator[str]:
    """Yield lines that list the slowest files and tests of a lane, each with its seconds."""
    cases = list(_cases(reports))
    if not cases:
        return
    files: defaultdict[str, list[float]] = defaultdict(list)
    for file, _, seconds in cases:
        files[file].append(seconds)
    yield f"== slowest of {lane}: {len(cases)} tests, {sum(case[2] for case in cases):.0f} s"
    for file in sorted(files, key=lambda file: -sum(files[file]))[:shown]:
        yield f"  {sum(files[file]):7.1f} s  {file} ({len(files[file])} tests)"
    for file, test, seconds in sorted(cases, key=lambda case: -case[2])[:shown]:
        yield f"  {seconds:7.1f} s  {file}::{test}"


def _cases(reports: Iterable[Path]) -> Iterator[tuple[str, str, float]]:
    """Yield file, name and seconds (with fixtures) of each test."""
    for report in reports:
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                found = _FILE.fullmatch(case.get("classname", ""))
                file = found[1] if found else case.get("classname", "?")
                yield file.replace(".", "/"), case.get("name", "?"), float(case.get("time", 0))
