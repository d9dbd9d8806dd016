"""Progress of a script without reports, parsed from its pod's log."""

import json
from typing import Final

from ddp_protocol.progress import TrainerStatus

from ddp_operator.api.values.expressions import group_names, groups
from ddp_operator.ports import LOG_END_BYTES

_LINE_BYTES: Final = 1024
"""Bytes of a line that are searched: the expression is a user's, and the operator waits for it."""


def read(pattern: str, log: bytes) -> TrainerStatus | None:
    """Return the newest value of each group of the pattern in the end of a log; None: no step.

    Raises:
        InvalidMessageError: a group's text is no number of its kind.
    """
    found: dict[str, str] = {}
    wanted = len(group_names(pattern))
    # Skip an incomplete last line, and an incomplete first line of a truncated log.
    # A progress bar restarts its line with a carriage return.
    lines = log.replace(b"\r", b"\n").split(b"\n")[len(log) >= LOG_END_BYTES : -1]
    for line in filter(None, reversed(lines)):
        for name, text in groups(pattern, line[:_LINE_BYTES]).items():
            found.setdefault(name, text)
        if len(found) == wanted:
            break
    if "step" not in found:
        return None
    return TrainerStatus.read(json.dumps({name: _number(text) for name, text in found.items()}))


def _number(text: str) -> int | float | str:
    """Parse a number as people print it, such as `1,200`; other text stays, to be refused."""
    plain = text.strip().replace(",", "").replace("_", "")
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return text
