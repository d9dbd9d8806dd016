"""What the readers of a person's words have in common."""

import re
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class JobRequestError(ValueError):
    """What was asked for cannot be had; the text says what was wrong, and what would be right."""


def object_name(text: str, what: str) -> str:
    """A name of an object in the cluster.

    Raises:
        JobRequestError: there can be no such name.
    """
    if not _NAME.fullmatch(text):
        raise JobRequestError(
            f"{what} {text[:80]!r}: a name has lower-case letters, digits, - and ."
        )
    return text


def absolute(text: str, what: str) -> str:
    """A path in a pod.

    Raises:
        JobRequestError: it is none, or not from the root.
    """
    if not text.startswith("/") or text == "/" or ":" in text or "\0" in text:
        raise JobRequestError(
            f"{what} {text[:80]!r}: give an absolute path in the pod, such as /data"
        )
    return text
