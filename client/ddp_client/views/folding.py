"""Show a line that several ranks or pods wrote only once."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

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
    joined: list[range] = []
    for each in sorted(own, key=lambda one: one.start):
        if joined and joined[-1].stop == each.start:
            joined[-1] = range(joined[-1].start, each.stop)
        else:
            joined.append(each)
    words = [f"{one.start}" if len(one) == 1 else f"{one.start}-{one[-1]}" for one in joined]
    return ",".join(words[:_MOST_SPANS]) + (",..." if len(words) > _MOST_SPANS else "")
