"""The Python stacks of a job's ranks, grouped by equal stacks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from ddp_operator.answers import Answer, Count, InvalidAnswerError
from ddp_operator.api.values.text import clean, counted, folded

_MOST_FRAMES: Final = 24
_MOST_GROUPS: Final = 16
_MOST_SPANS: Final = 8
_MOST_ELSEWHERE: Final = 3
_TEXT: Final = 300
"""Most characters of a file's or a function's name."""

_Text = Annotated[str, Field(max_length=_TEXT)]
ReportedFrame = Annotated[list[_Text], Field(min_length=3, max_length=3)]
"""File, line, function."""
_Frames = Annotated[list[ReportedFrame], Field(max_length=128)]
Frame = tuple[str, str, str]
"""The same, on one line each, without control characters."""
Stack = tuple[Frame, ...]
"""The innermost frame first, as in Python's `faulthandler`."""


class _RankStacks(Answer):
    """A launcher's report of a rank."""

    rank: Count
    process: Count | None = None
    threads: Annotated[list[_Frames], Field(max_length=1024, default_factory=list)]
    """The main thread first; of each the innermost frame first, as in Python's `faulthandler`."""
    problem: Annotated[str, Field(max_length=300)] = ""


class StacksAnswer(Answer):
    """The answer to POST /stacks."""

    MAX_BYTES: ClassVar[int] = 3 * 1024 * 1024

    ranks: Annotated[list[_RankStacks], Field(max_length=1024)]


@dataclass(frozen=True)
class Found:
    """The stacks of one rank, or why there are none."""

    rank: int
    pod: str
    process: int | None = None
    threads: tuple[Stack, ...] = ()
    """The main thread first."""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object of `-o json`."""
        threads = [
            [{"file": file, "line": line, "function": name} for file, line, name in stack]
            for stack in self.threads
        ]
        said: dict[str, Any] = {"rank": self.rank, "pod": self.pod, "process": self.process}
        return {**said, "problem": self.problem} if self.problem else {**said, "threads": threads}


def read(answer: bytes, pod: str, ranks: Sequence[int]) -> list[Found]:
    """Read a launcher's answer about its ranks; an invalid answer becomes a problem."""
    try:
        said = {each.rank: each for each in StacksAnswer.read(answer).ranks}
    except InvalidAnswerError:
        return [Found(rank, pod, problem="its launcher's answer is invalid") for rank in ranks]
    return [_one(said.get(rank), pod, rank) for rank in ranks]


def _one(said: _RankStacks | None, pod: str, rank: int) -> Found:
    if said is None:
        return Found(rank, pod, problem="it is not running")
    if said.threads:
        return Found(rank, pod, said.process, tuple(map(frames, said.threads)))
    problem = clean(said.problem or "its answer contains no stack", 200)
    return Found(rank, pod, said.process, problem=problem)


def frames(reported: Iterable[Sequence[str]]) -> Stack:
    """Return the frames of a thread as they are shown."""
    return tuple(
        (clean(file, _TEXT), clean(line, 8), clean(name, _TEXT)) for file, line, name in reported
    )


Places = Sequence[tuple[Stack, list[int]]]
"""Stacks with the ranks that are there, the most ranks first."""


def places(found: Iterable[Found]) -> Places:
    """Return the places of the ranks that answered."""
    groups: dict[Stack, list[int]] = {}
    for each in sorted(found, key=lambda each: each.rank):
        if not each.problem:
            groups.setdefault(each.threads[0], []).append(each.rank)
    # Among groups of equal size, the one with the lowest rank: dicts keep the order of ranks.
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def shown(found: Iterable[Found], width: int) -> list[str]:
    """Return a sentence about ranks at another place, then each place with its ranks."""
    told = sorted(found, key=lambda each: each.rank)
    silent: dict[str, list[Found]] = {}
    for each in told:
        if each.problem:
            silent.setdefault(each.problem, []).append(each)
    order = places(told)
    lines = folded(sentence(order, len(told)), width)
    for number, (stack, ranks) in enumerate(order[:_MOST_GROUPS]):
        lines += ["", *folded(in_spans(ranks), width)]
        lines += _frames(stack, order[0] if number else None, width)
    if len(order) > _MOST_GROUPS:
        lines += ["", f"and {len(order) - _MOST_GROUPS} more places: see -o json"]
    for problem, those in silent.items():
        lines.append("")
        who = in_spans([each.rank for each in those]) + (", such as" if len(those) > 1 else ",")
        who += f" pod {clean(those[0].pod, 253)}: "
        lines += folded(who + clean(problem), width)
    return lines


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


def _frames(stack: Stack, first: tuple[Stack, list[int]] | None, width: int) -> list[str]:
    """Return a stack's lines without the frames that it shares with the largest group."""
    common = 0
    if first is not None:
        for own, other in zip(reversed(stack), reversed(first[0]), strict=False):
            if own != other:
                break
            common += 1
    own_frames = stack[: len(stack) - common]
    lines = [f"  {_fitted(frame, width - 2)}" for frame in own_frames[:_MOST_FRAMES]]
    if len(own_frames) > _MOST_FRAMES:
        lines.append(f"  and {counted(len(own_frames) - _MOST_FRAMES, 'more frame')}")
    if common and first is not None:
        lines.append(f"  called as in {in_spans(first[1])}, from {place(stack[-common:])}")
    return lines or ["  no Python frame"]


def _fitted(frame: Frame, width: int) -> str:
    file, line, function = frame
    where = f":{line} in {function}"
    room = max(width - len(where), 20)
    return (file if len(file) <= room else f"…{file[-room + 1 :]}") + where


def place(stack: Stack) -> str:
    """Return text such as `data.py:7 in load`."""
    if not stack:
        return "no Python frame"
    file, line, function = stack[0]
    return f"{file.rpartition('/')[2]}:{line} in {function}"


def in_spans(ranks: Sequence[int]) -> str:
    """Return text such as `rank 5` or `ranks 0-4,6-7`; of many spans, the first ones."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = spans[-1][0], rank
        else:
            spans.append((rank, rank))
    said = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans[:_MOST_SPANS])
    more = f" and {len(spans) - _MOST_SPANS} more spans" if len(spans) > _MOST_SPANS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {said}{more}"
