"""Read `metrics.jsonl`, which rank 0 writes. Its content is not trusted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

_MAX_LINE: Final = 16 * 1024
_MAX_LINES: Final = 1_000_000
"""Most lines of the file that are read; a line covers many steps."""
_MAX_NUMBER: Final = 2**53
PHASES: Final = ("data", "compute", "communication", "checkpoint")
"""The phases of a trainer's time, as the trainer measures them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Consecutive steps, as rank 0 reports them; None: missing, or not a number."""

    step: int
    time: float
    """Unix time of its last step."""
    epoch: int | None
    loss: float | None
    samples_per_second: float | None
    phases: tuple[float, float, float, float] | None
    """Seconds of each of `PHASES`."""
    longest_step: float | None
    pace_rank: int | None
    """The slowest rank by its own time per step."""
    pace_seconds: float | None
    others_seconds: float | None
    straggler: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """A group formed, and completed its first step."""

    step: int
    formed: float
    first_step: float


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint that rank 0 wrote."""

    step: int
    time: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """The model's accuracy on the test set."""

    step: int
    accuracy: float


@dataclass(frozen=True)
class History:
    """The readable lines, in order."""

    intervals: list[Interval] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    is_cut: bool = False
    """Older lines were left out."""
    unread: int = 0
    """Number of lines that could not be read."""

    def __bool__(self) -> bool:
        return bool(self.intervals or self.starts or self.saves or self.scores)


def read(lines: Iterable[bytes], *, is_cut: bool = False) -> History:
    """Read the file; invalid lines are counted and left out."""
    history = History(is_cut=is_cut)
    unread = 0
    for number, line in enumerate(lines):
        if number >= _MAX_LINES or (line.strip() and not _take(line, history)):
            unread += 1
    return History(history.intervals, history.starts, history.saves, history.scores, is_cut, unread)


def read_bytes(content: bytes, *, is_cut: bool = False) -> History:
    """Read the end of a file; with `is_cut`, its first line may be incomplete and is skipped."""
    if is_cut:
        content = content.partition(b"\n")[2]
    return read(content.split(b"\n"), is_cut=is_cut)


def _take(line: bytes, into: History) -> bool:
    """Read one line; False if it is invalid."""
    try:
        told: Any = orjson.loads(line) if len(line) <= _MAX_LINE else None
    except orjson.JSONDecodeError:
        return False
    step = _whole(told.get("step")) if isinstance(told, dict) else None
    if step is None:
        return False
    last, time = _moment(told.get("lastStepTime")), _moment(told.get("time"))
    known = True
    match told.get("kind"):
        case "training" if last is not None or time is not None:
            into.intervals.append(_interval(told, step, (last or time or 0.0)))
        case "start" if last is not None and (formed := _moment(told.get("formedTime"))):
            into.starts.append(Start(step, formed, last))
        case "checkpoint" if (saved := _whole(told.get("savedStep"))) is not None:
            at, seconds = _moment(told.get("savedTime")), _positive(told.get("seconds"))
            into.saves.append(Save(saved, at, seconds))
        case "evaluation" if (accuracy := _number(told.get("accuracy"))) is not None:
            into.scores.append(Score(step, accuracy))
        case "metrics":
            pass  # a script's own metrics, which the report does not show
        case _:
            known = False
    return known


def _interval(told: Mapping[str, Any], step: int, time: float) -> Interval:
    phases = [_positive(told.get(f"{phase}Seconds")) for phase in PHASES]
    data, compute, communication, checkpoint = phases
    known = None
    if data is not None and compute is not None and communication is not None:
        known = (data, compute, communication, checkpoint or 0.0)
    return Interval(
        step=step,
        time=time,
        epoch=_whole(told.get("epoch")),
        loss=_number(told.get("loss")),
        samples_per_second=_positive(told.get("samplesPerSecond")),
        phases=known,
        longest_step=_positive(told.get("longestStepSeconds")),
        pace_rank=_whole(told.get("paceRank")),
        pace_seconds=_positive(told.get("paceSeconds")),
        others_seconds=_positive(told.get("othersPaceSeconds")),
        straggler=_whole(told.get("slowestRank")),
    )


def _moment(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value[:40])
        return time.timestamp() if time.tzinfo is not None and 1970 < time.year < 9000 else None
    except (ValueError, OverflowError):
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e30 else None


def _positive(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number < 1e12 else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _MAX_NUMBER else None
