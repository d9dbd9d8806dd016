"""Limits of what the operator reads and keeps of texts and objects that its users write.

Each reconcile reads the spec of a stranger in the event loop of all jobs. So time and memory must
be in proportion to its size, and the size is limited here. An expression that searches such text is
made with `linear`: Python's own engine tries every way to match, so that a short text can keep it
busy for minutes.
"""

from typing import Any, Final

import re2

MAX_SPEC_BYTES: Final = 256 * 1024
"""Largest spec as JSON: a hundred times most specs. The API server stores up to 1.5 MB."""
MAX_SPEC_VALUES: Final = 10_000
"""Most values in a spec, counting objects, lists and their items. `{}` is 2 bytes of JSON and 64 in
memory, so bytes alone do not limit the memory. A pod with 16 containers and 100 variables each has
5,000."""
MAX_PARSED_BYTES: Final = 32 * 1024
"""Largest estimate of the memory of a spec that stays parsed; others stay compressed."""
MAX_PACKED_BYTES: Final = 40 * 1024
"""Largest spec when compressed: texts of 160 KB or so, or 50 KB of base64."""
BYTES_PER_VALUE: Final = 100
"""Memory of a value in addition to its text: a little more than most take."""
MAX_PATH: Final = 4096
"""Linux' PATH_MAX: no program can open a longer path."""
MAX_SEARCHED: Final = 8 * 1024
"""Characters of a container's command and variables that are searched for what they start (in shell
lines) and for paths that they save to. What follows is only passed on."""
MAX_REFUSAL: Final = 64 * 1024
"""Characters of an API server's refusal that are read; it may quote a user's names and values."""
MAX_MESSAGE: Final = 4096
"""Characters of an error: as many as a status keeps."""


def linear(expression: str) -> Any:
    """Compile an expression for RE2, which takes time in proportion to the text."""
    return re2.compile(expression)


def most_values(written: bytes) -> int:
    """Return an upper bound of the values in a JSON text, which is exact if no text has commas,
    colons or brackets.
    """
    return 1 + sum(map(written.count, (b",", b":", b"[", b"{")))


def has_too_many_values(document: Any) -> bool:
    """Return whether a parsed JSON document has more than MAX_SPEC_VALUES values."""
    left, pending = MAX_SPEC_VALUES, [document]
    while pending:
        left -= 1
        value = pending.pop()
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list):
            continue
        if len(value) + len(pending) > left:
            return True
        pending += value
    return False
