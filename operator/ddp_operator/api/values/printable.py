"""Words of strangers that end up on somebody's terminal."""

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
"""A terminal's escape sequence, as a whole: its rest would be noise."""


def printable(text: str, *, kept: str = "") -> str:
    """A text without what a terminal would obey: none of it moves the cursor, changes colours or
    turns the direction of writing. Blanks of other kinds become spaces, but for those `kept`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else " " if c.isspace() else ""
        for c in _ESCAPE.sub("", text)
    )
