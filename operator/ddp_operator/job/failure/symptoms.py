"""What the last words of a container give away: who broke, this rank, another one, or the node.

PyTorch reports a lost peer as an exception like any other, and a broken GPU too; where an exit code
does not tell, only the text does. Words of which none is known are the training's own failure.

Anybody can prepare such a text: RE2 takes time in proportion to it, whatever is in it, where
Python's own engine takes seconds for some of the 4 KB that a container may leave.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import re2

from ddp_operator.job.failure import messages

_PEER: Final = re2.compile("|".join(messages.PEER))
_OWN: Final = re2.compile("|".join(messages.OWN))
_DEVICE: Final = re2.compile("|".join(messages.DEVICE))
_NODE: Final = re2.compile("|".join(messages.NODE))

_XID: Final = re2.compile(r"\b(?:Xid \([^)]*\):|NVRM:? Xid:?) (\d+)")
"""How the driver numbers a GPU's errors."""
_XIDS_OF_TRAININGS: Final = frozenset({"13", "31", "43", "45"})
"""Those that NVIDIA's catalogue lays at the application's door."""

_BAD_COMMAND: Final = re2.compile(
    r'exec: ".*": (executable file not found|stat .*: no such file|permission denied)'
    r"|exec .*: (no such file or directory|exec format error|permission denied)"
)
"""What runc says of a command that the image does not have."""

# The line that ends a Python traceback; torch puts «[rank1]: » before each line of its own.
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
    """A termination message, read."""

    text: str
    """What was said of the failure."""
    rank: int | None = None
    """The global rank that failed, as its launcher says."""
    judged: bool = False
    """Whether the exit code says what the text means: the launcher, or a rank that it has started,
    has read it; but not what a script has printed."""


_KEPT: Final = 1024
"""Messages whose meaning is remembered: a pod is asked for it whenever its job is looked at."""


@lru_cache(maxsize=_KEPT)
def last_words(message: str) -> LastWords:
    """Read a termination message: the bundled launcher's JSON, or the end of a log."""
    message = message.strip()
    if not message.startswith("{"):
        return LastWords(message)
    try:
        report = json.loads(message)
    except (ValueError, RecursionError):
        return LastWords(message)  # a log whose lines are JSON
    rank, error = report.get("rank"), report.get("error")
    if isinstance(error, str) and error:  # which may hold what no other JSON can
        message = error.encode(errors="replace").decode()
    judged = report.get("printed") is not True
    return LastWords(message, rank if isinstance(rank, int) else None, judged)


@lru_cache(maxsize=_KEPT)
def is_of_another_rank(message: str) -> bool:
    """Whether it says that another rank is gone.

    The exceptions count that ended the pod's processes: a connection that broke earlier, and was
    mended, is not what ended one.
    """
    said = _last_exceptions(message)
    if not said and _ROOT_CAUSE.search(message):
        return False  # the processes' own words are further up in the log
    return all(map(_lost_another, said or [message]))


@lru_cache(maxsize=_KEPT)
def is_of_node(message: str) -> bool:
    """Whether it says that the node is broken: its GPUs, their links or their driver."""
    return bool(_NODE.search(message)) or is_of_device(message)


@lru_cache(maxsize=_KEPT)
def is_of_device(message: str) -> bool:
    """Whether it says that a GPU itself is broken or lost, as no other start will change."""
    if _DEVICE.search(message):
        return True
    return any(found[1] not in _XIDS_OF_TRAININGS for found in _XID.finditer(message))


@lru_cache(maxsize=_KEPT)
def is_of_command(message: str) -> bool:
    """Whether it says that the image lacks the command."""
    return bool(_BAD_COMMAND.search(message))


@lru_cache(maxsize=_KEPT)
def torchrun_rank(message: str) -> int | None:
    """The global rank that torchrun names as the first to fail."""
    found = _ROOT_CAUSE.search(message)
    return int(found["rank"]) if found else None


@lru_cache(maxsize=_KEPT)
def headline(message: str) -> str:
    """One line for people: the exception that ended a Python program, else the last line."""
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
    """The exception that ended each process, with its text but without torch's further log lines.

    Only that of the process which torchrun names as the first to fail, where it names one.
    """
    found = {m["rank"]: m for m in _EXCEPTION.finditer(message) if m["name"] != _OF_TORCHRUN}
    by_rank = [match for rank, match in found.items() if rank] or list(found.values())
    root = f"[rank{torchrun_rank(message)}]"
    named = [found[root]] if root in found else by_rank
    texts = (message[match.start() :].partition(_TRACEBACK)[0] for match in named)
    return [_LOG_LINE.split(text)[0] for text in texts]
