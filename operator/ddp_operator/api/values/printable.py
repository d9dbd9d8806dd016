"""Makes text from others safe to print on a terminal."""

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
"""A whole escape sequence of a terminal; a part of it would remain as noise."""


def printable(text: str, *, kept: str = "") -> str:
    """Return a text without characters that a terminal obeys: nothing moves the cursor, changes
    colours or reverses the writing direction. Other whitespace becomes spaces, except `kept`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else " " if c.isspace() else ""
        for c in _ESCAPE.sub("", text)
    )
