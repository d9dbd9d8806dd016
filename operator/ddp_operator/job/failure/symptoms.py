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
from ddp_protocol.error_texts import Class, any_of
from ddp_protocol.message import OR_NONE, Count, InvalidMessageError, Message

_PEER: Final = re2.compile(any_of(Class.GLOO, Class.PEER))
_OWN: Final = re2.compile(any_of(Class.CUDA, Class.OWN))
_DEVICE: Final = re2.compile(any_of(Class.DEVICE))
_NODE: Final = re2.compile(any_of(Class.DEVICE, Class.NODE))
_COMMAND: Final = re2.compile(any_of(Class.COMMAND))
_MISTAKE: Final = re2.compile(any_of(Class.MISTAKE))
_SERVICE: Final = re2.compile(any_of(Class.SERVICE))

# The line that ends a Python traceback; torch prefixes its own lines with «[rank1]: ».
_EXCEPTION: Final = re2.compile(
    r"(?m)^(?P<rank>\[rank\d+\])?:? *(?:[A-Za-z_][\w.]*\.)?"
    r"(?P<name>\w*(?:Error|Exception|Interrupt|Exit|Failure)|exceptions\.[A-Z]\w*)\b(?::|$)"
)
_TRACEBACK: Final = "Traceback (most recent call last)"
_OF_TORCHRUN: Final = "ChildFailedError"
"""It only repeats that a process has failed."""
_LOG_LINE: Final = re2.compile(r"(?m)^(?:\[rank\d+\]:)?\[?[WEIF]\d{4} .*")
"""How torch's lines begin that it logs while a process goes down."""

_WHAT: Final = re2.compile(r"(?m)^ *what\(\): *(.+)$")
"""The exception that ended a C++ program."""
_LAST_ERROR: Final = re2.compile(r"(?m)^(?:\[rank\d+\]:)? *Last error: *\n(?:\[rank\d+\]:)? *(.+)$")
"""NCCL's own cause, below the words of its error code."""
_FRAME: Final = re2.compile(r" *(?:frame #\d+: |Exception raised from )")

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


@dataclass(frozen=True, kw_only=True)
class _Report(Message):
    """The termination message that the bundled launcher leaves. Scripts may leave others."""

    rank: Annotated[Count | None, OR_NONE] = None
    error: Annotated[str | None, OR_NONE] = None
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
    except InvalidMessageError:
        return LastWords(message)  # a log with lines of JSON
    text = (report.error or message).encode(errors="replace").decode()  # no lone surrogates
    return LastWords(text, report.rank, not report.printed, bool(report.dumps))


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
    return bool(_NODE.search(message))


@lru_cache(maxsize=_KEPT)
def is_of_device(message: str) -> bool:
    """Return whether the message says that a GPU is broken or lost, which no restart fixes."""
    return bool(_DEVICE.search(message))


@lru_cache(maxsize=_KEPT)
def is_of_service(message: str) -> bool:
    """Return whether a program ended because a server or storage outside of the job failed.

    Earlier lines do not count: programs also log such an error when they try again.
    """
    return bool(_SERVICE.search(deciding_exception(message) or headline(message)))


@lru_cache(maxsize=_KEPT)
def is_of_command(message: str) -> bool:
    """Return whether the message says that the image lacks the command."""
    return bool(_COMMAND.search(message))


@lru_cache(maxsize=_KEPT)
def is_of_command_line(message: str) -> bool:
    """Return whether the message ends by saying that the command cannot work as it is written."""
    said = _last_exceptions(message)
    if said:
        return all(_MISTAKE.search(text.partition("\n")[0]) for text in said)
    own = _LOG_LINE.sub("", message.partition(_TRACEBACK)[0])
    return bool(_MISTAKE.search(own.rstrip().rpartition("\n")[2]))


@lru_cache(maxsize=_KEPT)
def torchrun_rank(message: str) -> int | None:
    """Return the global rank that torchrun reports as the first to fail."""
    found = _ROOT_CAUSE.search(message)
    return int(found["rank"]) if found else None


@lru_cache(maxsize=_KEPT)
def headline(message: str) -> str:
    """Return one line: the exception that ended a program, with NCCL's cause, else the last line
    that is no stack frame.
    """
    if said := deciding_exception(message):
        cause, name = _LAST_ERROR.search(said), _EXCEPTION.match(said)
        if cause and name:
            return f"{name['name']}: {cause[1].strip()}"
        return said.splitlines()[0].strip()
    if found := _ROOT_CAUSE.search(message):
        return f"torchrun: rank {found['rank']} failed first, with exitcode {found['code']}"
    if found := _WHAT.search(message):
        return str(found[1]).strip()
    lines = list(filter(None, map(str.strip, message.splitlines()))) or [""]
    return next((line for line in reversed(lines) if not _FRAME.match(line)), lines[-1])


def deciding_exception(message: str) -> str:
    """Return the exception that ended a Python program, with its text; empty without any."""
    said = _last_exceptions(message)
    own = (text for text in said if not _lost_another(text))
    return next(own, said[-1] if said else "")


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
