"""Checks of a person's input, shared by all parts of a request."""

from ddp_operator.api.values.text import OBJECT_NAME


class JobRequestError(ValueError):
    """The request is invalid; the text names the option and the remedy."""


def object_name(text: str, what: str) -> str:
    """Return a valid object name.

    Raises:
        JobRequestError: the name is invalid.
    """
    if not OBJECT_NAME.fullmatch(text):
        raise JobRequestError(f"{what} {text[:80]!r}: use lower-case letters, digits, - and .")
    return text


def absolute(text: str, what: str) -> str:
    """Return an absolute path in a pod.

    Raises:
        JobRequestError: the path is not absolute, or is /.
    """
    if not text.startswith("/") or text == "/" or ":" in text or "\0" in text:
        raise JobRequestError(
            f"{what} {text[:80]!r}: give an absolute path in the pod, such as /data"
        )
    return text
