"""The Python stacks of a job's ranks, grouped by equal stacks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from ddp_protocol.message import Bounds

from ddp_operator.api.values.text import clean, counted, in_ranges

_MOST_SPANS: Final = 8
_MOST_ELSEWHERE: Final = 3
_TEXT: Final = 300
"""Most characters of a file's or a function's name."""

_Text = Annotated[str, Bounds(0, _TEXT)]
ReportedFrame = Annotated[tuple[_Text, ...], Bounds(3, 3)]
"""File, line, function."""
Frame = tuple[str, str, str]
"""The same, on one line each, without control characters."""
Stack = tuple[Frame, ...]
"""The innermost frame first, as in Python's `faulthandler`."""


def frames(reported: Iterable[Sequence[str]]) -> Stack:
    """Return the frames of a thread as they are shown."""
    return tuple(
        (clean(file, _TEXT), clean(line, 8), clean(name, _TEXT)) for file, line, name in reported
    )


Places = Sequence[tuple[Stack, list[int]]]
"""Stacks with the ranks that are there, the most ranks first."""


def places(by_rank: Mapping[int, Stack]) -> Places:
    """Return the places of the ranks that answered."""
    groups: dict[Stack, list[int]] = {}
    for rank, stack in sorted(by_rank.items()):
        groups.setdefault(stack, []).append(rank)
    # Among groups of equal size, the one with the lowest rank: dicts keep the order of ranks.
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def sentence(order: Places, total: int) -> str:
    """Return in which places the ranks are; `total`: also those that did not answer."""
    told = sum(len(ranks) for _, ranks in order)
    if not order:
        return f"None of {counted(total, 'rank')} answered."
    rest = f" {counted(total - told, 'rank')} did not answer." if told < total else ""
    (most, many), *others = order
    if not others:
        if total == 1:
            return f"The only rank is at {place(most)}."
        who = "All" if told == total else "The"
        return f"{who} {counted(told, 'rank')} {_are(many)} at {place(most)}.{rest}"
    first = in_spans(many).capitalize()
    if len(others) > _MOST_ELSEWHERE:
        return f"{first} {_are(many)} at {place(most)}, others at {len(others)} places.{rest}"
    elsewhere = "; ".join(
        f"{in_spans(ranks)} {_are(ranks)} elsewhere, at {place(stack)}" for stack, ranks in others
    )
    return f"{first} {_are(many)} at {place(most)}; {elsewhere}.{rest}"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def place(stack: Stack) -> str:
    """Return text such as `data.py:7 in load`."""
    if not stack:
        return "no Python frame"
    file, line, function = stack[0]
    return f"{file.rpartition('/')[2]}:{line} in {function}"


def in_spans(ranks: Sequence[int]) -> str:
    """Return text such as `rank 5` or `ranks 0-4,6-7`; of many spans, the first ones."""
    spans = in_ranges(ranks).split(",")
    more = f" and {len(spans) - _MOST_SPANS} more spans" if len(spans) > _MOST_SPANS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(spans[:_MOST_SPANS])}{more}"
