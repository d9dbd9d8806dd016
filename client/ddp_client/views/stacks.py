"""The command `stacks`: what launchers answer about the Python stacks of their ranks, in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.hang.stacks import (
    Frame,
    ReportedFrame,
    Stack,
    frames,
    in_spans,
    place,
    places,
    sentence,
)
from ddp_protocol.message import Bounds, Count, InvalidMessageError, Message

from ddp_client.text import folded

_MOST_FRAMES: Final = 24
_MOST_GROUPS: Final = 16

_Frames = Annotated[tuple[ReportedFrame, ...], Bounds(0, 128)]


@dataclass(frozen=True, kw_only=True)
class _RankStacks:
    """A launcher's report of a rank."""

    rank: Count
    process: Count | None = None
    threads: Annotated[tuple[_Frames, ...], Bounds(0, 1024)] = ()
    """The main thread first; of each the innermost frame first, as in Python's `faulthandler`."""
    problem: Annotated[str, Bounds(0, 300)] = ""


@dataclass(frozen=True, kw_only=True)
class StacksAnswer(Message):
    """The answer to POST /stacks."""

    MAX_BYTES: ClassVar[int] = 3 * 1024 * 1024

    ranks: Annotated[tuple[_RankStacks, ...], Bounds(0, 1024)]


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
    except InvalidMessageError:
        return [Found(rank, pod, problem="its launcher's answer is invalid") for rank in ranks]
    return [_one(said.get(rank), pod, rank) for rank in ranks]


def _one(said: _RankStacks | None, pod: str, rank: int) -> Found:
    if said is None:
        return Found(rank, pod, problem="it is not running")
    if said.threads:
        return Found(rank, pod, said.process, tuple(map(frames, said.threads)))
    problem = clean(said.problem or "its answer contains no stack", 200)
    return Found(rank, pod, said.process, problem=problem)


def shown(found: Iterable[Found], width: int) -> list[str]:
    """Return a sentence about ranks at another place, then each place with its ranks."""
    told = sorted(found, key=lambda each: each.rank)
    silent: dict[str, list[Found]] = {}
    for each in told:
        if each.problem:
            silent.setdefault(each.problem, []).append(each)
    order = places({each.rank: each.threads[0] for each in told if not each.problem})
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
