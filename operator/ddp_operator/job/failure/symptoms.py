"""Read a container's last words: did this rank fail, another one, or the node?

PyTorch reports a lost peer as an ordinary exception, and a broken GPU too. Where the exit code does
not tell, only the text does. Unknown text means the training itself failed.

Users control this text. RE2 takes linear time on it, where Python's own engine can take seconds for
the 4 KB that a container may leave.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import re2
from pydantic import BeforeValidator

from ddp_operator.answers import Answer, Count, InvalidAnswerError
from ddp_operator.api.values.bounded import OR_NONE
from ddp_operator.job.failure import messages

_PEER: Final = re2.compile("|".join(messages.PEER))
_OWN: Final = re2.compile("|".join(messages.OWN))
_DEVICE: Final = re2.compile("|".join(messages.DEVICE))
_NODE: Final = re2.compile("|".join(messages.NODE))

_XID: Final = re2.compile(r"\b(?:Xid \([^)]*\):|NVRM:? Xid:?) (\d+)")
"""How the driver numbers GPU errors."""
_XIDS_OF_TRAININGS: Final = frozenset({"13", "31", "43", "45"})
"""Errors that NVIDIA's catalogue attributes to the application."""

_BAD_COMMAND: Final = re2.compile(
    r'exec: ".*": (executable file not found|stat .*: no such file|permission denied)'
    r"|(?:^|[^/])exec .*: (no such file or directory|exec format error|permission denied)"
)
"""runc's errors for a command that the image lacks. After fork/exec it is a hook of the node."""

# The line that ends a Python traceback; torch prefixes its own lines with «[rank1]: ».
_EXCEPTION: Final = re2.compile(
    r"(?m)^(?P<rank>\[rank\d+\])?:? *(?:[A-Za-z_][\w.]*\.)?"
    r"(?P<name>\w*(?:Error|Exception|Interrupt|Exit|Failure))\b(?::|$)"
)
_TRACEBACK: Final = "Traceback (most recent call last)"
_OF_TORCHRUN: Final = "ChildFailedError"
"""It only repeats that a process has failed."""
_LOG_LINE: Final = re2.compile(r"(?m)^(?:\[rank\d+\]:)?\[?[WEIF]\d{4} .*")
"""How torch's lines begin that it logs while a process goes down."""

_ROOT_CAUSE: Final = re2.compile(
    r"(?ms)^Root Cause \(first observed failure\):.*?^ *rank *: (?P<rank>\d+) .*?"
    r"^ *exitcode *: (?P<code>-?\d+) "
)
"""The end of torchrun's report."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """A parsed termination message."""

    text: str
    """The message about the failure."""
    rank: int | None = None
    """The global rank that failed, as its launcher reports it."""
    judged: bool = False
    """True if the exit code is already derived from the text, by the launcher or a rank it started.
    Text that a script printed is not."""
    dumps: bool = False
    """The launcher shows dumps of its ranks' collectives, from before their end."""


def _encodable(text: object) -> object:
    """Replace lone surrogates."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


class _Report(Answer):
    """The termination message that the bundled launcher leaves. Scripts may leave others."""

    rank: Annotated[Count | None, OR_NONE] = None
    error: Annotated[str | None, OR_NONE, BeforeValidator(_encodable)] = None
    printed: Annotated[bool | None, OR_NONE] = None
    dumps: Annotated[bool | None, OR_NONE] = None


_KEPT: Final = 1024
"""Cached messages: each plan asks again for the same pods."""


@lru_cache(maxsize=_KEPT)
def last_words(message: str) -> LastWords:
    """Parse a termination message: the bundled launcher's JSON, or the end of a log."""
    message = message.strip()
    if not message.startswith("{"):
        return LastWords(message)
    try:
        report = _Report.read(message)
    except InvalidAnswerError:
        return LastWords(message)  # a log with lines of JSON
    return LastWords(report.error or message, report.rank, not report.printed, bool(report.dumps))


@lru_cache(maxsize=_KEPT)
def is_of_another_rank(message: str) -> bool:
    """Return whether the message says that another rank is gone.

    Only the exceptions that ended the processes count. A connection that broke earlier and
    recovered did not end them.
    """
    said = _last_exceptions(message)
    if not said and _ROOT_CAUSE.search(message):
        return False  # the processes' own messages are further up in the log
    return all(map(_lost_another, said or [message]))


@lru_cache(maxsize=_KEPT)
def is_of_node(message: str) -> bool:
    """Return whether the message says that the node's GPUs, links or driver are broken."""
    return bool(_NODE.search(message)) or is_of_device(message)


@lru_cache(maxsize=_KEPT)
def is_of_device(message: str) -> bool:
    """Return whether the message says that a GPU is broken or lost, which no restart fixes."""
    if _DEVICE.search(message):
        return True
    return any(found[1] not in _XIDS_OF_TRAININGS for found in _XID.finditer(message))


@lru_cache(maxsize=_KEPT)
def is_of_command(message: str) -> bool:
    """Return whether the message says that the image lacks the command."""
    return bool(_BAD_COMMAND.search(message))


@lru_cache(maxsize=_KEPT)
def torchrun_rank(message: str) -> int | None:
    """Return the global rank that torchrun reports as the first to fail."""
    found = _ROOT_CAUSE.search(message)
    return int(found["rank"]) if found else None


@lru_cache(maxsize=_KEPT)
def headline(message: str) -> str:
    """Return one line: the exception that ended a Python program, else the last line."""
    said = _last_exceptions(message)
    if said:
        own = (text for text in said if not _lost_another(text))
        return next(own, said[-1]).splitlines()[0].strip()
    if found := _ROOT_CAUSE.search(message):
        return f"torchrun: rank {found['rank']} failed first, with exitcode {found['code']}"
    lines = message.strip().splitlines() or [""]
    return lines[-1].strip()


def _lost_another(text: str) -> bool:
    return bool(_PEER.search(text)) and not _OWN.search(text)


def _last_exceptions(message: str) -> list[str]:
    """Return the exception that ended each process, with its text but without torch's further log
    lines.

    If torchrun names the process that failed first, return only that one's.
    """
    found = {m["rank"]: m for m in _EXCEPTION.finditer(message) if m["name"] != _OF_TORCHRUN}
    by_rank = [match for rank, match in found.items() if rank] or list(found.values())
    root = f"[rank{torchrun_rank(message)}]"
    named = [found[root]] if root in found else by_rank
    texts = (message[match.start() :].partition(_TRACEBACK)[0] for match in named)
    return [_LOG_LINE.split(text)[0] for text in texts]
