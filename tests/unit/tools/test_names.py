"""Names of tests are short enough for one line of pytest's summary."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
LONGEST = 70


def test_no_name_of_a_test_has_more_than_70_characters() -> None:
    names = {
        f"{path.relative_to(TESTS)}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST
    }
    assert not names
