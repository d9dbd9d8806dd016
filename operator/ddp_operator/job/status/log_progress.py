"""Progress of a script that reports none: read in what its pod prints."""

import json
import re
from typing import Final

from ddp_operator.api.values.expressions import group_names, groups
from ddp_operator.job.status.progress import TrainerStatus
from ddp_operator.ports import LOG_END_BYTES

_LINE_BYTES: Final = 1024
"""Of a line, that are searched: the expression is a stranger's, and the operator waits for it."""
_ENDS: Final = re.compile(rb"[\r\n]+")
"""A progress bar begins its line anew with a carriage return."""


def read(pattern: str, log: bytes) -> TrainerStatus | None:
    """What the end of a log says, of each of the pattern's groups the newest; None: no step.

    Raises:
        InvalidAnswerError: what a group holds is no number of its kind.
    """
    found: dict[str, str] = {}
    wanted = len(group_names(pattern))
    # What follows the last end of a line may be the half of a number; so may what a log that was
    # cut begins with.
    lines = _ENDS.split(log)[len(log) >= LOG_END_BYTES : -1]
    for line in reversed(lines):
        for name, text in groups(pattern, line[:_LINE_BYTES]).items():
            found.setdefault(name, text)
        if len(found) == wanted:
            break
    if "step" not in found:
        return None
    return TrainerStatus.read(json.dumps({name: _number(text) for name, text in found.items()}))


def _number(text: str) -> int | float | str:
    """A number as people print it, also `1,200`; whatever else stays to be refused."""
    plain = text.strip().replace(",", "").replace("_", "")
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return text
