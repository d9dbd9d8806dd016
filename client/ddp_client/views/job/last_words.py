"""Last words of pods: rank 0's report as a sentence, and the last lines of a log."""

import json
import math
from typing import Any, Final

from ddp_client.text import clean_lines, number

_MARK: Final = "; rank 0 says: {"
_MOST: Final = 2**53
_MOST_LINES: Final = 100
_MOST_CHARACTERS: Final = 4096
_SECONDS: Final = 5.0


def readable(message: str, *, succeeded: bool) -> str:
    """Return a job's message without JSON, which ends the message of a job that succeeded."""
    head, mark, rest = message.partition(_MARK)
    if not (mark and succeeded):
        return message
    try:
        words = sentence(json.loads("{" + rest))
    except (ValueError, RecursionError):  # cut, or of a script
        words = ""
    return f"{head}; rank 0: {words}" if words else head


def sentence(report: dict[str, Any]) -> str:
    """Return a report's step, loss, accuracy and checkpoint; users may have written any values."""
    parts: list[str] = []
    step, total = _count(report.get("step")), _count(report.get("totalSteps"))
    if step is not None:
        parts.append(f"step {step}" + (f" of {total}" if total is not None else ""))
    if (loss := _measure(report.get("loss"))) is not None:
        parts.append(f"loss {number(loss)}")
    if (accuracy := _measure(report.get("accuracy"))) is not None:
        parts.append(f"accuracy {accuracy:.1%}")
    saved = report.get("checkpoint")
    if isinstance(saved, dict) and (at := _count(saved.get("step"))) is not None:
        parts.append(f"checkpoint of step {at}")
    return ", ".join(parts)


def log_lines(text: str) -> list[str]:
    """Return the lines of the end of a log that is kept or passed on, without secrets."""
    # Here, because most commands need no rules for secrets, which take time to load.
    from ddp_client.views.redaction import RedactionTimeoutError, Redactor  # noqa: PLC0415

    try:
        text = Redactor(_SECONDS).text(text)
    except RedactionTimeoutError:
        return ["(left out: searching these lines for secrets took too long)"]
    return clean_lines(text, last=_MOST_LINES, limit=_MOST_CHARACTERS)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _measure(value: object) -> float | None:
    if isinstance(value, int):
        return float(value) if abs(value) < _MOST else None
    return value if isinstance(value, float) and math.isfinite(value) else None
