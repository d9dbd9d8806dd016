"""Show a line that several ranks or pods wrote only once."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from ddp_operator.api.values.text import in_ranges

T = TypeVar("T", bound=Hashable)
W = TypeVar("W", bound=Hashable)

_MOST_SPANS: Final = 4
"""In a prefix; the rest is an ellipsis. The count includes all."""


def fold(lines: Iterable[tuple[W, T]]) -> list[tuple[T, list[W]]]:
    """Join equal lines of several writers, and keep the order of each writer's own lines.

    No line is lost or added: a writer that wrote a line twice is listed twice. All lines are held
    in memory, so the caller must bound their number.
    """
    folded: list[tuple[T, list[W]]] = []
    places: dict[T, list[int]] = {}
    reached: dict[W, int] = {}
    for writer, line in lines:
        there = places.setdefault(line, [])
        after = bisect_right(there, reached.get(writer, -1))
        if after == len(there):
            there.append(len(folded))
            folded.append((line, []))
        reached[writer] = there[after]
        folded[there[after]][1].append(writer)
    return folded


def spans(own: Iterable[range]) -> str:
    """Return ranges of ranks as text such as `0-3,8`."""
    parts = in_ranges(sorted({rank for each in own for rank in each})).split(",")
    return ",".join(parts[:_MOST_SPANS]) + (",..." if len(parts) > _MOST_SPANS else "")
