"""Text that is safe to print on a terminal.

Anybody who can write to the cluster may have chosen it. It must not move the cursor, change colours
or the direction of writing, or fill the screen.
"""

import re
from collections.abc import Sequence
from typing import Final

OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A valid object name; nothing else may become part of a request's path."""
SENTENCE: Final = 600
"""Most characters of a message that are shown."""

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


def clean(text: object, limit: int = SENTENCE) -> str:
    """Return a text on one line, without control characters, of at most `limit` characters."""
    # Cut generously first: escapes and spaces that are removed leave room.
    said = " ".join(printable(str(text)[: 4 * limit]).split())
    return cut(said, limit)


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def in_ranges(numbers: Sequence[int]) -> str:
    """Return numbers in any order as text, such as `0-2,5,4`."""
    parts: list[str] = []
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            first, last = numbers[begin], numbers[end - 1]
            parts.append(f"{first}-{last}" if first < last else str(first))
            begin = end
    return ",".join(parts)


def counted(count: int, what: str, many: str = "") -> str:
    """Return a count and its noun, such as `1 pod` or `4 pods`."""
    return f"{count} {what}" if count == 1 else f"{count} {many or f'{what}s'}"
