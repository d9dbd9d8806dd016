"""Read `metrics.jsonl`, which rank 0 writes. Its content is not trusted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson
from ddp_operator.job.status.curve import Row

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

    def curve(self) -> list[Row]:
        """Return loss and accuracy of all steps that have one."""
        losses = {each.step: each.loss for each in self.intervals}
        scores = {each.step: each.accuracy for each in self.scores}
        steps = sorted({*losses, *scores})
        return [Row(step, losses.get(step), scores.get(step)) for step in steps]


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
        entry: Any = orjson.loads(line) if len(line) <= _MAX_LINE else None
    except orjson.JSONDecodeError:
        return False
    step = _whole(entry.get("step")) if isinstance(entry, dict) else None
    if step is None:
        return False
    last, time = _moment(entry.get("lastStepTime")), _moment(entry.get("time"))
    known = True
    match entry.get("kind"):
        case "training" if last is not None or time is not None:
            into.intervals.append(_interval(entry, step, (last or time or 0.0)))
        case "start" if last is not None and (formed := _moment(entry.get("formedTime"))):
            into.starts.append(Start(step, formed, last))
        case "checkpoint" if (saved := _whole(entry.get("savedStep"))) is not None:
            at, seconds = _moment(entry.get("savedTime")), _positive(entry.get("seconds"))
            into.saves.append(Save(saved, at, seconds))
        case "evaluation" if (accuracy := _number(entry.get("accuracy"))) is not None:
            into.scores.append(Score(step, accuracy))
        case "metrics":
            pass  # a script's own metrics, which the report does not show
        case _:
            known = False
    return known


def _interval(entry: Mapping[str, Any], step: int, time: float) -> Interval:
    phases = [_positive(entry.get(f"{phase}Seconds")) for phase in PHASES]
    data, compute, communication, checkpoint = phases
    known = None
    if data is not None and compute is not None and communication is not None:
        known = (data, compute, communication, checkpoint or 0.0)
    return Interval(
        step=step,
        time=time,
        epoch=_whole(entry.get("epoch")),
        loss=_number(entry.get("loss")),
        samples_per_second=_positive(entry.get("samplesPerSecond")),
        phases=known,
        longest_step=_positive(entry.get("longestStepSeconds")),
        pace_rank=_whole(entry.get("paceRank")),
        pace_seconds=_positive(entry.get("paceSeconds")),
        others_seconds=_positive(entry.get("othersPaceSeconds")),
        straggler=_whole(entry.get("slowestRank")),
    )


def read_time(value: object) -> datetime | None:
    """Read a time in the format of Kubernetes and the trainer; None for anything else."""
    try:
        time = datetime.fromisoformat(value[:40]) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo is not None and 1970 < time.year < 9000 else None


def _moment(value: object) -> float | None:
    time = read_time(value)
    return time.timestamp() if time else None


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
