"""Selects the last output of a rank that fits a report.

The traceback that ended the rank has priority: other threads and libraries may print a lot after
it. The rest is the end of the output, as in the pod's log. Of a traceback that is too long, the
exception stays, with the frames next to it and the exceptions that led to it.

Output that was selected may be selected again with fewer bytes: marks of a cut look like frames.

Pure: `rank_output` keeps the output of ranks.
"""

from __future__ import annotations

import json
import re
import signal
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from ddp_trainer.exit_codes import ExitCode, of_signal

KEPT_BYTES: Final = 128 * 1024
"""Bytes to keep of each stream of a rank: a traceback of a thousand frames, and what follows it."""
WORDS_BYTES: Final = 900
"""Bytes of JSON to report. With the launcher's own sentence, they are as much as the operator keeps
(1024 characters); with the rest of a report, they fit every message."""

UNHANDLED: Final = frozenset({ExitCode.FAILURE, of_signal(signal.SIGABRT)})
"""Exit codes after an unhandled exception, in Python and in C++."""

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
_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
"""Python's lines between an exception and the one that it led to."""
_CUT: Final = "[…]"
_CUT_FRAMES: Final = f"  {_CUT}"
"""Indented as frames are, so that nobody takes it for the exception."""


def bytes_of(text: str) -> int:
    """Return how many bytes a text takes in JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace")) - 2


def beginning(text: str, most: int, *, mark: str = _CUT) -> str:
    """Return the beginning of a text in at most `most` bytes of JSON; `mark` shows a cut."""
    if len(text) <= most and bytes_of(text) <= most:
        return text
    room = most - bytes_of(mark)
    if room < 0:
        return ""
    text = text[:room]
    lengths = range(1, len(text) + 1)
    fits = bisect_right(lengths, room, key=lambda length: bytes_of(text[:length]))
    return text[:fits].rstrip() + mark


def last_words(streams: Sequence[bytes], *, unhandled: bool, most: int = WORDS_BYTES) -> str:
    """Return the last output of a rank, in at most `most` bytes of JSON.

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
        room = most - bytes_of(f"\n{said}")
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
    block, chain = _block(lines, at), _chain(lines, begins, at)
    whole = "\n".join([*lines[chain[0] : at], *block])
    if len(whole) <= most and bytes_of(whole) <= most:
        before = _last(lines[: chain[0]], most - bytes_of(f"\n{whole}"))
        return f"{before}\n{whole}" if before else whole
    exception = _exception(block)
    text = "\n".join(block[exception:])
    if not exception:
        return beginning(text, most)
    said = beginning(text, most * 2 // 3)
    opening = [block[0], _CUT_FRAMES]
    causes = [_without_frames(_block(lines, begin), most // 6) for begin in chain[:-1]]
    while bytes_of("\n".join(causes)) > most // 3:
        del causes[-1]  # the first one often tells the most
    for head in ([*causes, *opening], opening):
        room = most - bytes_of("\n".join([*head, "", said]))
        if room >= 0:
            frames = _last(block[1:exception], room)
            if frames[:1] != " ":  # a part of a line would look like an exception
                frames = ""
            return "\n".join(filter(None, [*head, frames, said]))
    return beginning(text, most)


def _chain(lines: Sequence[str], begins: Sequence[int], at: int) -> list[int]:
    """Return where the exceptions begin that led to the one at `at`, which is the last of them."""
    chain = [at]
    for begin in reversed(begins[: begins.index(at)]):
        if _block(lines, begin)[-1] not in _LINKS:
            break
        chain.insert(0, begin)
    return chain


def _without_frames(block: Sequence[str], most: int) -> str:
    """Return an exception of a chain: its first line in at most `most` bytes, and the link."""
    line = beginning(block[_exception(block)], most)
    return "\n".join([block[0], _CUT_FRAMES, line, block[-1]])


def _exception(block: Sequence[str]) -> int:
    """Return where the exception begins in a traceback; 0: there is no traceback or exception."""
    if not _TRACEBACK.match(block[0]):
        return 0
    return next((i for i, line in enumerate(block) if i and line and line[0] != " "), 0)


def _block(lines: Sequence[str], begin: int) -> list[str]:
    """Return the lines of an exception, up to the start of the next one."""
    ends = (_TRACEBACK, _ABORT, _ASIDE)
    rest = takewhile(lambda line: not any(end.match(line) for end in ends), lines[begin + 1 :])
    block = [lines[begin], *rest]
    while not block[-1]:
        del block[-1]
    return block


def _last(lines: Sequence[str], most: int) -> str:
    """Return the last lines that fit; of a longer line, its end."""
    text = "\n".join(lines).strip("\n")
    if len(text) <= most and bytes_of(text) <= most:
        return text
    text = text[-most:] if most > 0 else ""
    lengths = range(1, len(text) + 1)
    fits = bisect_right(lengths, most, key=lambda length: bytes_of(text[-length:]))
    end = text[len(text) - fits :]
    whole = end.partition("\n")[2]
    return (whole or end).strip("\n")
