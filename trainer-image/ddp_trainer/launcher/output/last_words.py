"""Selects the last output of a rank that fits a report.

The traceback that ended the rank has priority: other threads and libraries may print a lot after
it. The rest is the end of the output, as in the pod's log.

Pure: `rank_output` keeps the output of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

KEPT_BYTES: Final = 32 * 1024
"""Bytes to keep of each stream of a rank: usually more than what follows a traceback."""
WORDS_BYTES: Final = 900
"""Bytes to report: together with the launcher's own sentence, as much as the operator keeps."""

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Colours and cursor movements of a terminal (ECMA-48)."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]+")
_RANK: Final = re.compile(r"\[rank\d+\]:(?: |$)")
"""torch's prefix of each line of a traceback; the report names the rank anyway."""
_STACK: Final = re.compile(r"\s*frame #\d+: ")
"""Lines of a C++ stack: dozens follow the message of an exception."""
_TRACEBACK: Final = re.compile(r"(?:Original )?Traceback \(most recent call last\):")
_ABORT: Final = re.compile(
    r"terminate called after throwing an instance of |Fatal Python error: (?!Aborted)"
)
_ASIDE: Final = re.compile(
    r"Exception ignored |Exception in thread |Task exception was never retrieved"
    r"|--- Logging error ---|Error in atexit\._run_exitfuncs"
)
"""Lines before the traceback of an error that does not end the process."""
_OF_TORCHRUN: Final = "ChildFailedError:"
"""torchrun's error, which only repeats that a process has failed."""
_CUT: Final = "[…]"


def last_words(streams: Sequence[bytes], *, unhandled: bool, most: int = WORDS_BYTES) -> str:
    """Return the last output of a rank, in at most `most` bytes of UTF-8.

    Args:
        streams: the end of each stream; stderr is the last one.
        unhandled: true if the exit code shows that an exception ended the rank. Otherwise
            tracebacks are lines like any other, since their exceptions were handled.
    """
    texts = [list(_lines(stream)) for stream in streams]
    if unhandled:
        for lines in reversed(texts):
            if said := _of_exception(lines, most):
                return said
    said = ""
    for lines in reversed(texts):
        room = most - _size(said) - 1
        said = "\n".join(filter(None, (_last(lines, room), said)))
    return said


def _lines(output: bytes) -> Iterator[str]:
    """Yield the lines as a terminal finally shows them."""
    for line in _ESCAPE.sub("", output.decode(errors="replace")).split("\n"):
        drawn = [part for part in line.split("\r") if part.strip()]
        shown = _CONTROL.sub("", drawn[-1] if drawn else "").rstrip()
        if not _STACK.match(shown):
            yield _RANK.sub("", shown, count=1)


def _of_exception(lines: Sequence[str], most: int) -> str:
    """Return the last unhandled exception with its traceback; empty: there is none."""
    begins = [at for at, line in enumerate(lines) if _TRACEBACK.match(line) or _ABORT.match(line)]
    own = [at for at in begins if not any(map(_ASIDE.match, lines[max(at - 2, 0) : at]))]
    named = [at for at in own if not any(_OF_TORCHRUN in line for line in _block(lines, at))]
    if not own:
        return ""
    at = (named or own)[-1]
    block = _block(lines, at)
    exception = next((i for i, line in enumerate(block) if i and not line.startswith(" ")), 0)
    if not _TRACEBACK.match(block[0]):
        exception = 0
    whole = "\n".join(block)
    if _size(whole) <= most:
        before = _last(lines[:at], most - _size(whole) - 1)
        return f"{before}\n{whole}" if before else whole
    said = _first(block[exception:], most * 2 // 3 if exception else most)
    if not exception:
        return said
    frames = _last(block[1:exception], most - _size(f"{block[0]}\n{_CUT}\n\n{said}"))
    return f"{block[0]}\n{_CUT}\n{frames}\n{said}"


def _block(lines: Sequence[str], begin: int) -> list[str]:
    """Return the lines of an exception, up to the start of the next one."""
    ends = (_TRACEBACK, _ABORT, _ASIDE)
    rest = takewhile(lambda line: not any(end.match(line) for end in ends), lines[begin + 1 :])
    block = [lines[begin], *rest]
    while not block[-1]:
        del block[-1]
    return block


def _first(lines: Sequence[str], most: int) -> str:
    """Return the first `most` bytes of the lines."""
    text = "\n".join(lines)
    if _size(text) <= most:
        return text
    return _decoded(text.encode()[: most - _size(_CUT)]).rstrip() + _CUT


def _last(lines: Sequence[str], most: int) -> str:
    """Return the last lines that fit; of a longer line, its end."""
    text = "\n".join(lines).strip("\n")
    if _size(text) <= most:
        return text
    end = _decoded(text.encode()[-max(most, 1) :]) if most > 0 else ""
    whole = end.partition("\n")[2]
    return (whole or end).strip("\n")


def _decoded(cut: bytes) -> str:
    return cut.decode(errors="ignore")


def _size(text: str) -> int:
    return len(text.encode())
