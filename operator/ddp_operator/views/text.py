"""Words for a terminal. Whoever may write to a cluster chose them: none may move the cursor, change
colours or turn the direction of writing, nor fill the screen.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from ddp_operator.api.values.printable import printable

SENTENCE: Final = 600
"""Characters of a message that are shown at most."""
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_MOST_SECONDS: Final = 100 * 365 * 86400


def clean(text: object, limit: int = SENTENCE) -> str:
    """A text on one line, without what a terminal would obey, and not longer than `limit`."""
    # Escapes and spaces take room that is given back.
    said = " ".join(printable(str(text)[: 4 * limit]).split())
    return _cut(said, limit)


def clean_output(line: str, limit: int) -> str:
    """A line that a program printed, its spaces kept; of a bar that it drew again and again over
    itself, the last state.
    """
    shown = line[: 4 * limit].rstrip("\r\n").rpartition("\r")[2]
    return _cut(printable(shown.expandtabs()), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def clean_lines(text: str, *, last: int, limit: int) -> list[str]:
    """The last lines that a program printed and that say something."""
    lines = (clean_output(line, limit).rstrip() for line in text[-4 * last * limit :].split("\n"))
    return [line for line in lines if line][-last:]


def duration(seconds: float) -> str:
    """Such as `45s`, `12m`, `2h10m` or `3d4h`: as exact as anybody wants to know."""
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
    """Four digits, without a trailing zero."""
    return f"{value:.4g}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells, one under the other; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def facts(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Lines of a label and what there is to say of it, which is folded at the width; a label that
    is empty goes on with the one before.
    """
    pairs = list(pairs)
    indent = max((len(label) for label, _ in pairs), default=0) + 2
    lines: list[str] = []
    for label, said in pairs:
        lines += folded(said, width, first=label.ljust(indent), rest=" " * indent)
    return lines


def folded(said: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """A text in lines of at most that width; never cut where it has words."""
    lines = textwrap.wrap(
        said,
        max(width, len(first) + 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def counted(count: int, what: str) -> str:
    """Such as `1 pod` and `4 pods`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
