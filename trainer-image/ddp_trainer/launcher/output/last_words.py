"""Picks what a rank said last: the end of its output, as far as a report has room for it.

The traceback that ended the rank comes first: what other threads and libraries print after it would
push it out. The rest is the end of the output, as a pod's log has it.

Pure: `output` keeps what ranks print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

KEPT_BYTES: Final = 32 * 1024
"""Of each stream of a rank: more than what follows a traceback, as a rule."""
WORDS_BYTES: Final = 900
"""What is reported of it: with the launcher's own sentence, as much as the operator keeps."""

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Colours, and movements of a terminal's cursor (ECMA-48)."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]+")
_RANK: Final = re.compile(r"\[rank\d+\]:(?: |$)")
"""torch puts it before each line of a traceback; the report names the rank."""
_STACK: Final = re.compile(r"\s*frame #\d+: ")
"""Lines of C++'s stack: dozens follow an exception's words."""
_TRACEBACK: Final = re.compile(r"(?:Original )?Traceback \(most recent call last\):")
_ABORT: Final = re.compile(
    r"terminate called after throwing an instance of |Fatal Python error: (?!Aborted)"
)
_ASIDE: Final = re.compile(
    r"Exception ignored |Exception in thread |Task exception was never retrieved"
    r"|--- Logging error ---|Error in atexit\._run_exitfuncs"
)
"""What precedes the traceback of an error that ends no process."""
_OF_TORCHRUN: Final = "ChildFailedError:"
"""It only repeats that a process has failed."""
_CUT: Final = "[…]"


def last_words(streams: Sequence[bytes], *, unhandled: bool, most: int = WORDS_BYTES) -> str:
    """Return the end of what a rank printed, in at most `most` bytes of UTF-8.

    Args:
        streams: the end of each, that of stderr last.
        unhandled: whether an exception has ended the rank, as its exit code says. Otherwise a
            traceback is a line like any other, for what it tells of was handled.
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
    """Return the lines as a terminal would show them in the end."""
    for line in _ESCAPE.sub("", output.decode(errors="replace")).split("\n"):
        drawn = [part for part in line.split("\r") if part.strip()]
        shown = _CONTROL.sub("", drawn[-1] if drawn else "").rstrip()
        if not _STACK.match(shown):
            yield _RANK.sub("", shown, count=1)


def _of_exception(lines: Sequence[str], most: int) -> str:
    """Return the last exception that was not handled, with its traceback; empty: there is none."""
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
    """Return what belongs to an exception: up to what begins another one."""
    ends = (_TRACEBACK, _ABORT, _ASIDE)
    rest = takewhile(lambda line: not any(end.match(line) for end in ends), lines[begin + 1 :])
    block = [lines[begin], *rest]
    while not block[-1]:
        del block[-1]
    return block


def _first(lines: Sequence[str], most: int) -> str:
    """Return how they begin, the last line cut."""
    text = "\n".join(lines)
    if _size(text) <= most:
        return text
    return _decoded(text.encode()[: most - _size(_CUT)]).rstrip() + _CUT


def _last(lines: Sequence[str], most: int) -> str:
    """Return the last lines; of a longer one, the end."""
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
