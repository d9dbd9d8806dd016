"""The curve of a training: step, loss and accuracy in a short text that the status keeps.

It stays readable when pods and their files are gone. The text is a row for each kept report, such
as `10:2.31 20:1.9:0.85 25::0.9`: step, loss and accuracy. Its length is bounded: when there are too
many rows, an even selection stays.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ddp_protocol.progress import TrainerStatus

_MOST_ROWS: Final = 128
_MOST_CHARACTERS: Final = 4000
"""With one more row, less than the status may contain."""
_SELECTED: Final = 48
"""Most intervals of steps; one loss and one score of each stay."""


class Row(NamedTuple):
    """A point of the curve; None: not reported at this step."""

    step: int
    loss: float | None
    accuracy: float | None
    """Or another score; higher is better."""


def rows(text: str) -> list[Row]:
    """Return the rows in the order of steps; unreadable ones are left out."""
    return [row for word in text.split(" ") if (row := _row(word)) is not None]


def best(points: Sequence[Row]) -> Row | None:
    """Return the row with the highest score; the first one, if several have it."""
    scores = [row for row in points if row.accuracy is not None]
    return max(scores, key=lambda row: row.accuracy or 0.0, default=None)


def until(text: str, step: int) -> str:
    """Return the curve without the rows after a step."""
    return _text(row for row in rows(text) if row.step <= step)


def extended(text: str, report: TrainerStatus) -> str:
    """Return the curve with what a trainer reports.

    A report of an earlier step than the last one shows that training went back: later rows are
    removed, because their steps are trained again.
    """
    if report.loss is None and report.accuracy is None:
        return text
    last = _step(text.rpartition(" ")[2])
    if report.step < last:
        text = until(text, report.step)
        last = _step(text.rpartition(" ")[2])
    at = report.step if report.accuracy_step is None else report.accuracy_step
    is_new = report.accuracy is not None and _is_new(text, report, at)
    if is_new and at <= last:
        text = _text(_with_score(rows(text), at, report.accuracy))
    elif is_new and at < report.step:
        text = _joined(text, Row(at, None, report.accuracy))
    score = report.accuracy if is_new and at == report.step else None
    if report.step > last and (report.loss, score) != (None, None):
        text = _joined(text, Row(report.step, report.loss, score))
    return _selected(text)


def _is_new(text: str, report: TrainerStatus, at: int) -> bool:
    """Return whether the curve lacks a report's score, which is of step `at`."""
    if at > report.step:
        return False  # training went back behind the evaluation
    if report.accuracy_step is not None:
        row = f" {text} ".partition(f" {at}:")[2].partition(" ")[0]
        return ":" not in row
    # A score without its step, as from a log, is repeated until there is another one.
    newest = next((row.accuracy for row in reversed(rows(text)) if row.accuracy is not None), None)
    return newest is None or _number(report.accuracy) != _number(newest)


def _with_score(points: list[Row], step: int, score: float | None) -> Iterator[Row]:
    """Yield the rows with a score at a step that is not after the last one."""
    for at, row in enumerate(points):
        before = points[at - 1].step if at else -1
        if before < step < row.step:
            yield Row(step, None, score)
        yield row._replace(accuracy=score) if row.step == step else row


def _selected(text: str) -> str:
    """Return the text, or an even selection of its rows if they are too many.

    The best and the newest score, and the last row, always stay.
    """
    if len(text) <= _MOST_CHARACTERS and text.count(" ") < _MOST_ROWS:
        return text
    points = rows(text)
    scores = [row for row in points if row.accuracy is not None]
    selection = {points[-1], best(points), *scores[-1:]}
    selection |= {*_even(points, lambda row: row.loss), *_even(scores, lambda row: row.accuracy)}
    return _text(row for row in points if row in selection)


def _even(points: list[Row], value: Callable[[Row], float | None]) -> Iterator[Row]:
    """Yield the first row with a value in each of at most `_SELECTED` equal intervals of steps.

    Their length is a power of two, so that a later selection has no larger gaps than this one.
    """
    span = (points[-1].step - points[0].step) // _SELECTED + 1 if points else 1
    length, last = 1 << (span - 1).bit_length(), -1
    for row in points:
        interval = row.step // length
        if interval > last and value(row) is not None:
            last = interval
            yield row


def _joined(text: str, row: Row) -> str:
    return f"{text} {_text([row])}" if text else _text([row])


def _text(points: Iterable[Row]) -> str:
    return " ".join(
        f"{row.step}:{_number(row.loss)}"
        + ("" if row.accuracy is None else f":{_number(row.accuracy)}")
        for row in points
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _step(word: str) -> int:
    row = _row(word)
    return row.step if row is not None else -1


def _row(word: str) -> Row | None:
    step, *values = word.split(":")
    try:
        loss, score = ([float(value) if value else None for value in values] + [None, None])[:2]
        row = Row(int(step), loss, score)
    except ValueError:
        return None
    is_finite = all(value is None or math.isfinite(value) for value in row[1:])
    return row if is_finite and 0 <= row.step < 2**53 and len(values) <= 2 else None
