import pytest
from ddp_client.text import clean_lines, columns, duration, facts


@pytest.mark.parametrize("text", ["x" * 1000, "x " * 1000, "\x1b[31m" * 1000, "\x1b]" * 1000])
def test_lines_are_bounded(text: str) -> None:
    assert all(len(line) <= 20 for line in clean_lines(text, last=3, limit=20))


def test_last_lines_are_kept() -> None:
    text = "\n".join(f"line {number}\n\n" for number in range(100))
    assert clean_lines(text, last=2, limit=80) == ["line 98", "line 99"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (59, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (3599, "59m"),
        (7800, "2h10m"),
        (7201, "2h"),
        (100_000, "1d3h"),
        (1e30, "36500d"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_columns_are_aligned() -> None:
    assert columns([["A", "LONG", "Z"], ["abc", "d", ""]]) == ["A    LONG  Z", "abc  d"]


def test_facts_are_folded_at_words() -> None:
    lines = facts([("one", "word " * 30), ("longer", "x"), ("", "more")], 40)
    assert lines[0] == "one     " + "word " * 5 + "word"
    assert lines[-2:] == ["longer  x", "        more"]
    assert max(map(len, lines)) <= 40
