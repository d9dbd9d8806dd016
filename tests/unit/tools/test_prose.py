"""Findings of the checker of prose in each kind of text."""

from pathlib import Path

import pytest

from tools import prose

WORD = "anew"
"""A marker word."""


def _found(path: Path) -> list[tuple[str, int, str]]:
    return [
        (passage.kind, line, words)
        for passage in prose.passages(path)
        for line, words in prose.markers(passage)
    ]


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("start anew", "again"),
        ("is told to", "receives"),
        ("job, whose pods", "name it"),
        ("training goes on", "continues"),
        ("answers 403 else.", "otherwise"),
        ("were to train", "must"),
    ],
)
def test_marker_words_are_found_with_advice(tmp_path: Path, words: str, instead: str) -> None:
    (tmp_path / "page.md").write_text(f"# Title\n\nHere {words}\n")
    [(kind, line, found)] = _found(tmp_path / "page.md")
    assert (kind, line) == ("docs", 3)
    assert instead in found


def test_code_is_no_prose(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        f"Set `{WORD}` or:\n\n```sh\nrun {WORD}\n```\n<!-- {WORD} -->\n"
    )
    (tmp_path / "code.py").write_text(f"{WORD} = '{WORD}'  # names and short strings\n")
    assert _found(tmp_path / "page.md") == _found(tmp_path / "code.py") == []


def test_each_kind_of_text_in_python_is_read(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        f'"""What is\n\nread {WORD}."""\n'
        f"# read {WORD}\n"
        f'raise ValueError(f"node {{rank}} must start {WORD}")\n'
        "LIMIT = 3\n"
        f'"""Restarts that begin {WORD}."""\n'
    )
    assert sorted((kind, line) for kind, line, _ in _found(tmp_path / "code.py")) == [
        ("comment", 4),
        ("docstring", 1),  # begins with "What"
        ("docstring", 3),
        ("docstring", 7),
        ("message", 5),
    ]


def test_long_sentences_are_found_outside_of_lists_and_tables(tmp_path: Path) -> None:
    short = "word " * 30
    page = tmp_path / "page.md"
    page.write_text(
        f"{short}.\n\n- {short}\n- {short}\n\n| {short} | {short} |\n|--|--|\n\n{short}\n{short}\n"
    )
    found = [
        (line, words)
        for passage in prose.passages(page)
        for line, words, _ in prose.long_sentences(passage)
    ]
    assert found == [(9, 60)]


def test_more_markers_than_the_limit_are_too_many() -> None:
    one = prose.Count(words=10, markers=["a"])
    few = prose.Count(words=2000, markers=["a"] * 3)
    many = prose.Count(words=2000, markers=["a"] * 4)
    assert [count.too_many for count in (one, few, many)] == [False, False, True]


def test_connectives_and_table_rows_of_docs_are_counted() -> None:
    page = prose.Count(words=400, connectives=4, lines=50, rows=3)
    code = prose.Count(words=1000)
    counts = {("docs/how-to", "docs"): page, ("docs", "comment"): code, ("tools", "docs"): code}
    line, errors = prose.docs_summary(counts)
    assert line.startswith("docs: 10.0 connectives per 1,000 words, 6.0 %")
    assert errors == []
    assert len(prose.CONNECTIVES.findall("By default it stops, because it must.")) == 2
    assert prose.table_rows("| a | b |\n|---|---|\ntext | more\n") == 2


@pytest.mark.parametrize(
    ("connectives", "rows", "words"), [(3, 3, "too few connectives"), (4, 4, "at most 6 %")]
)
def test_docs_beyond_a_limit_are_an_error(connectives: int, rows: int, words: str) -> None:
    page = prose.Count(words=400, connectives=connectives, lines=50, rows=rows)
    [error] = prose.docs_summary({("docs", "docs"): page})[1]
    assert words in error
