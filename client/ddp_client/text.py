"""Text for terminals: folded, in columns, and with amounts as people write them."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from ddp_operator.api.values.text import cut, printable

_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_MOST_SECONDS: Final = 100 * 365 * 86400


def clean_output(line: str, limit: int) -> str:
    """Return a line of a program's output with its spaces; of a progress bar, the last state."""
    shown = line[: 4 * limit].rstrip("\r\n").rpartition("\r")[2]
    return cut(printable(shown.expandtabs()), limit)


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
