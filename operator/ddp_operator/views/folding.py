"""Lines that several ranks or pods wrote, each said once."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)
W = TypeVar("W", bound=Hashable)

_MOST_SPANS: Final = 4
"""In a prefix; the rest of them is an ellipsis, and the count has them."""


def fold(lines: Iterable[tuple[W, T]]) -> list[tuple[T, list[W]]]:
    """Put a line that others have written before it to theirs, unless that would change the order
    of its own writer's lines. None is lost or invented, and who wrote a line twice has it twice.

    It holds all lines that it is given: what is folded is for the caller to bound.
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
    """Ranges of ranks in short, such as `0-3,8`."""
    joined: list[range] = []
    for each in sorted(own, key=lambda one: one.start):
        if joined and joined[-1].stop == each.start:
            joined[-1] = range(joined[-1].start, each.stop)
        else:
            joined.append(each)
    words = [f"{one.start}" if len(one) == 1 else f"{one.start}-{one[-1]}" for one in joined]
    return ",".join(words[:_MOST_SPANS]) + (",..." if len(words) > _MOST_SPANS else "")
