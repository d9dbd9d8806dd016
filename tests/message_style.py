"""Style of messages: errors, log lines, Events, conditions and printed lines."""

import re
from collections.abc import Iterator
from typing import Final

MAX_CHARACTERS: Final = 200
"""Longer lines are hard to read on a terminal and in `kubectl describe`."""

_PRIVATE: Final = re.compile(
    r"\b(Traceback|TODO|FIXME|XXX|None|NoneType|kwargs|coroutine|asyncio|aiohttp|pydantic|"
    r"callback|self\.\w+)\b|(?<![\w.])_[a-z]\w+| object at 0x|<class "
)
"""Words that only readers of the source understand."""
_NAME: Final = re.compile(r"[A-Z][a-z]*[A-Z_0-9-]|[A-Z]:|(Kubernetes|Kueue|Event|Secret|Service)\b")
"""Names that begin with a capital letter anywhere: WORLD_SIZE, ConfigMap, GPUs, GET."""
_ADVICE: Final = re.compile(r"[:;,(] ?\S+ \S+")
"""A remedy follows the problem, after a colon, comma or bracket."""

_WAITING: Final = re.compile(r"^waiting until \S+: ")
_TESTIMONY: Final = re.compile(
    r"(?<= on node )\S+: |(?<=rank 0 says: )|(?<=denied it: )|(?<=server fail: )|(?<=; waiting: )"
    r"|(?<=: )\d+/\d+ nodes are available"
)


def faults(message: str) -> Iterator[str]:
    """Yield the faults of a log line, an error, or the message of an Event or a condition.

    Other text may surround these, so they are no sentences.
    """
    yield from _common(message)
    if re.match(r"[A-Z]", message) and not _NAME.match(message):
        yield "begins with a capital letter"
    if re.search(r"\w[.!]$", message):
        yield "ends as a sentence"


def faults_at_terminal(message: str) -> Iterator[str]:
    """Yield the faults of a printed line. If it begins as a sentence, it must end as one."""
    yield from _common(message)
    sentence = re.match(r"[A-Z]", message) and not _NAME.match(message)
    if sentence and not message.endswith((".", "?", ":")):
        yield "begins as a sentence, and does not end as one"


def faults_of_refusal(message: str) -> Iterator[str]:
    """Yield the faults of an error about a person's input, which must name a remedy."""
    yield from faults(message)
    if not _ADVICE.search(message):
        yield "does not say what to do"


def without_testimony(message: str) -> str:
    """Return the operator's own words in a message.

    The text of a pod, the scheduler or a policy may follow them, and "waiting until" with a time
    may precede them.
    """
    return _TESTIMONY.split(_WAITING.sub("", message))[0].rstrip(": ")


def _common(message: str) -> Iterator[str]:
    if not re.search(r"[a-z]{2}", message):
        yield "says nothing"
    if len(message) > MAX_CHARACTERS:
        yield f"has {len(message)} characters"
    if message.split() != message.split(" "):
        yield "is not one line with single blanks"
    if found := _PRIVATE.search(message):
        yield f"has a word that only the source explains: {found[0]}"
