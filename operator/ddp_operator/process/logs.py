"""The operator's log: one line for each record, even if a job or a pod contributes text."""

import bisect
import json
import logging
import unicodedata
from datetime import UTC, datetime
from typing import Final, Literal

_MAX_CHARACTERS: Final = 16 * 1024
"""Largest record; log collectors accept this as one (containerd itself splits lines at 16 KiB)."""

_FORGING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that would break a line, control a terminal, reverse the writing
direction, or could not be written."""


class OneLineFormatter(logging.Formatter):
    """Time, level, name and message. Text that could look like another record is escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        return one_line(super().format(record))


class JsonFormatter(logging.Formatter):
    """A JSON object with time, severity, logger and message, under the names that Cloud Logging
    uses for the record's own fields. It is ASCII, so that nothing in it has a special meaning.
    """

    def __init__(self) -> None:
        super().__init__("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        time = datetime.fromtimestamp(record.created, UTC)
        return json.dumps(
            {
                "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "severity": record.levelname,
                "logger": record.name,
                "message": _within_bounds(super().format(record)),
            }
        )


def one_line(text: str) -> str:
    """Return a text with unprintable characters escaped, cut if it is too long."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}… ({len(text) - _MAX_CHARACTERS} more characters)"
    if text.isprintable():  # nearly always
        return text
    return "".join(map(_harmless, text))


LogFormat = Literal["text", "json"]
_FORMATTERS: Final[dict[LogFormat, type[logging.Formatter]]] = {
    "text": OneLineFormatter,
    "json": JsonFormatter,
}


def log_to_stderr(*, verbose: bool, log_format: LogFormat = "text") -> None:
    """Set up logging; with `verbose`, also details."""
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[log_format]())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    # kopf logs every event that it passes on; the engine logs what it does.
    for chatty in ("kopf.objects", "kopf.activities", "kopf._core.engines.activities"):
        logging.getLogger(chatty).setLevel(logging.DEBUG if verbose else logging.WARNING)


def _harmless(character: str) -> str:
    if unicodedata.category(character) not in _FORGING:
        return character
    return character.encode("unicode_escape").decode()


def _within_bounds(text: str) -> str:
    """Cut a text that would be too long as JSON, where a character may take twelve."""
    beginning = text[:_MAX_CHARACTERS]
    if len(beginning) == len(text) and len(json.dumps(text)) <= _MAX_CHARACTERS:  # nearly always
        return text
    lengths = range(len(beginning) + 1)
    kept = bisect.bisect(lengths, _MAX_CHARACTERS, key=lambda n: len(json.dumps(beginning[:n]))) - 1
    return f"{text[:kept]}… ({len(text) - kept} more characters)"
