"""Text that is safe to print on a terminal.

Anybody who can write to the cluster may have chosen it. It must not move the cursor, change colours
or the direction of writing, or fill the screen.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

SENTENCE: Final = 600
"""Most characters of a message that are shown."""
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_MOST_SECONDS: Final = 100 * 365 * 86400

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
    return _cut(said, limit)


def clean_output(line: str, limit: int) -> str:
    """Return a line of a program's output with its spaces; of a progress bar, the last state."""
    shown = line[: 4 * limit].rstrip("\r\n").rpartition("\r")[2]
    return _cut(printable(shown.expandtabs()), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def clean_lines(text: str, *, last: int, limit: int) -> list[str]:
    """Return the last lines of a program's output that are not empty."""
    lines = (clean_output(line, limit).rstrip() for line in text[-4 * last * limit :].split("\n"))
    return [line for line in lines if line][-last:]


def duration(seconds: float) -> str:
    """Return a rounded duration such as `45s`, `12m`, `2h10m` or `3d4h`."""
    rest = int(min(max(seconds, 0), _MOST_SECONDS))
    for at, (unit, size) in enumerate(_UNITS):
        if rest >= size:
            count, rest = divmod(rest, size)
            if at + 1 < len(_UNITS) and count < 10:
                below, its_size = _UNITS[at + 1]
                if rest >= its_size:
                    return f"{count}{unit}{rest // its_size}{below}"
            return f"{count}{unit}"
    return "0s"


def number(value: float) -> str:
    """Return a number with four digits, without trailing zeros."""
    return f"{value:.4g}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as aligned lines; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def facts(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return lines of labels and texts, folded at the width.

    An empty label continues the label before it.
    """
    pairs = list(pairs)
    indent = max((len(label) for label, _ in pairs), default=0) + 2
    lines: list[str] = []
    for label, said in pairs:
        lines += folded(said, width, first=label.ljust(indent), rest=" " * indent)
    return lines


def folded(said: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return a text folded at the width; lines break between words."""
    lines = textwrap.wrap(
        said,
        max(width, len(first) + 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def counted(count: int, what: str, many: str = "") -> str:
    """Return a count and its noun, such as `1 pod` or `4 pods`."""
    return f"{count} {what}" if count == 1 else f"{count} {many or f'{what}s'}"
