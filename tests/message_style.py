"""How this software speaks to people: what a message of it may look like, wherever it is seen."""

import re
from collections.abc import Iterator
from typing import Final

MAX_CHARACTERS: Final = 200
"""What is longer is not read to its end on a terminal or in `kubectl describe`."""

_PRIVATE: Final = re.compile(
    r"\b(Traceback|TODO|FIXME|XXX|None|NoneType|kwargs|coroutine|asyncio|aiohttp|pydantic|"
    r"callback|self\.\w+)\b|(?<![\w.])_[a-z]\w+| object at 0x|<class "
)
"""Words that mean something only to who reads the source."""
_NAME: Final = re.compile(r"[A-Z][a-z]*[A-Z_0-9-]|[A-Z]:|(Kubernetes|Kueue|Event|Secret|Service)\b")
"""What has a capital letter wherever it stands: WORLD_SIZE, ConfigMap, GPUs, GET."""
_ADVICE: Final = re.compile(r"[:;,(] ?\S+ \S+")
"""Behind what is wrong stands what to do about it."""

_WAITING: Final = re.compile(r"^waiting until \S+: ")
_TESTIMONY: Final = re.compile(
    r"(?<= on node )\S+: |(?<=rank 0 says: )|(?<=denied it: )|(?<=server fail: )|(?<=; waiting: )"
    r"|(?<=: )\d+/\d+ nodes are available"
)


def faults(message: str) -> Iterator[str]:
    """What is wrong with a line of a log, an error, or the message of an Event or a condition.
    Others put their own words around these: they are no sentences.
    """
    yield from _common(message)
    if re.match(r"[A-Z]", message) and not _NAME.match(message):
        yield "begins with a capital letter"
    if re.search(r"\w[.!]$", message):
        yield "ends as a sentence"


def faults_at_terminal(message: str) -> Iterator[str]:
    """What is wrong with what somebody at a terminal is told, in whole sentences or in none."""
    yield from _common(message)
    sentence = re.match(r"[A-Z]", message) and not _NAME.match(message)
    if sentence and not message.endswith((".", "?", ":")):
        yield "begins as a sentence, and does not end as one"


def faults_of_refusal(message: str) -> Iterator[str]:
    """What is wrong with the words by which somebody's input is refused."""
    yield from faults(message)
    if not _ADVICE.search(message):
        yield "does not say what to do"


def without_testimony(message: str) -> str:
    """The operator's own words about one thing. Behind them may stand those of a pod, of the
    scheduler or of a policy; before them, until when something waits for what they say.
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
