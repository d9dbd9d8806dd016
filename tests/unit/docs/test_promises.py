"""The table of promises in tests/README.md: pages and tests exist, one of each row runs daily."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield promise, page and tests of each row."""
    table = (ROOT / "tests/README.md").read_text().partition("\n## Promises\n")[2]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "promise":
            promise, page, tests = cells
            yield promise, page, tests


@cache
def functions(path: Path) -> dict[str, bool]:
    """Return the names of a file's tests, and whether each is nightly."""
    tree = ast.parse(path.read_text())
    marks = [node for node in tree.body if isinstance(node, ast.Assign)]
    all_nightly = any(
        "pytestmark" in ast.dump(mark.targets[0]) and _nightly(mark) for mark in marks
    )
    return {
        node.name: all_nightly or any(_nightly(mark) for mark in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _nightly(node: ast.AST) -> bool:
    """Tell whether code is a mark, or a list of marks, with `pytest.mark.nightly` in it."""
    if isinstance(node, ast.Call):  # of parametrize: only some of its cases are nightly
        return False
    attributes = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
    return any(part.attr == "nightly" for part in attributes)


@pytest.mark.parametrize(("promise", "page", "tests"), [*rows()], ids=lambda cell: cell[:40])
def test_each_promise_has_a_page_and_a_daily_test(promise: str, page: str, tests: str) -> None:
    assert (ROOT / page if page == "README.md" else ROOT / "docs" / page).exists()
    if tests == "none":
        return
    by_hand = re.search(r"`make (?!test`)[\w-]+`", promise)
    names = re.findall(r"`([^`]+)::(\w+)`", tests)
    assert names
    for file, name in names:
        assert name in functions(ROOT / "tests" / file), f"{file} has no {name}"
    are_nightly = [functions(ROOT / "tests" / file)[name] for file, name in names]
    assert by_hand or not all(are_nightly), "each promise needs a daily test"


def test_tests_that_pages_name_exist() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = {*re.findall(r"`(?:[\w/.]+::)?(test_\w+)`", text)}
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert len(named) > 10
    assert named - {*re.findall(r"def (test_\w+)", code)} == set()
