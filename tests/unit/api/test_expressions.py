"""Users' regular expressions: found, refused with a message, and never busy forever."""

import os
from pathlib import Path

import pytest
from ddp_operator.api.values.expressions import search, valid


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        ("loss is nan", "step 7: loss is nan", True),
        (r"\bnan\b", "banana", False),
        ("(?i)CUDA", "cuda error", True),
        ("^Traceback", "Traceback (most recent call last)", True),
        ("second$", "first\nsecond", True),
        ("first.*second", "first\nsecond", False),
        ("é+t", "l'été", True),
        ("no.space", "no\ud800space", True),
    ],
)
def test_search(expression: str, text: str, *, found: bool) -> None:
    assert search(valid(expression), text) is found


@pytest.mark.parametrize(
    "expression", ["(", "(?=look-ahead)", r"(a)\1", "a{1000}{1000}{1000}", r"\pL{100}"]
)
def test_unsupported_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        valid(expression)


@pytest.mark.timeout(60)
def test_nested_repetition_takes_linear_time() -> None:
    """Python's own engine would try 2 to the power of 1000 ways."""
    assert not search("(a+)+$", "a" * 1000 + "b")


def test_cached_expressions_stay_within_64_mib() -> None:
    """The largest allowed number of cached, worst expressions, of an operator's 512 MB."""
    worst = [f"(?i){number}\\w{{100}}[a-z]{{100}}" for number in range(1000)]
    text = "xX1 error " * 100
    for expression in worst[:100]:
        search(valid(expression), text)
    before = _resident_bytes()
    for expression in worst[100:]:
        search(valid(expression), text)
    assert _resident_bytes() - before < 64 << 20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
