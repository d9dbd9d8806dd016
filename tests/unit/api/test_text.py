import pytest
from ddp_operator.api.values.text import clean

from tests.unit.cli.jobs import ESCAPES


def test_control_sequences_are_removed() -> None:
    assert clean(f"a {ESCAPES}\tb\nc") == "a red end b c"
    assert clean("\x9b31mx\x00\x7f") == "31mx"
    assert clean("\x1b") == ""


def test_printable_unicode_stays() -> None:
    assert clean("Größe 3 µs, 損失 ✓") == "Größe 3 µs, 損失 ✓"


@pytest.mark.parametrize("text", ["x" * 1000, "x " * 1000, "\x1b[31m" * 1000, "\x1b]" * 1000])
def test_texts_are_bounded(text: str) -> None:
    assert len(clean(text, 20)) <= 20
