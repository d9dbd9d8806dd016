"""Regular expressions that users write.

Python's own engine tries every way to match, and a pattern such as `(a+)+$` keeps it busy for ever,
and the operator with it. pydantic's, the Rust crate `regex`, lets a few letters take megabytes, as
`\\w{170}` does. RE2 takes time in proportion to the text, and memory that is bounded here. Its
syntax is that of the API server's own rules.
"""

from functools import lru_cache
from itertools import islice
from typing import Any

import re2

_MEMORY_BYTES = 1 << 16
"""For an expression and what it needs to search; those of people take a tenth."""
_KEPT = 256
"""Expressions that stay compiled: at most 32 MB, since RE2 compiles some from both ends."""
_KEPT_ANSWERS = 4096
"""Whether an expression matches a text: a failed pod is asked again whenever its job is looked at.
At most 20 MB, of texts as long as a failure's message may be."""
_MATCHES = 8
"""In a line; each may take as long as the first."""


@lru_cache(maxsize=_KEPT_ANSWERS)
def search(expression: str, text: str) -> bool:
    """Whether a valid expression matches somewhere in a text."""
    # What no encoding has, such as half a surrogate pair, matches nothing.
    return _compiled(expression).search(text.encode(errors="replace")) is not None


def groups(expression: str, line: bytes) -> dict[str, str]:
    """What the named groups of a valid expression hold in a line: the last that each holds where it
    matches, and nothing of groups that took no part.
    """
    compiled = _compiled(expression)
    return {
        _text(name): _text(found.group(index))
        for found in islice(compiled.finditer(line), _MATCHES)
        for name, index in compiled.groupindex.items()
        if found.group(index) is not None
    }


def group_names(expression: str) -> set[str]:
    """The names of a valid expression's groups."""
    return {_text(name) for name in _compiled(expression).groupindex}


def valid(expression: str) -> str:
    """Return an expression that can be searched for.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    try:
        _compiled(expression)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "unknown"
        raise ValueError(f"not a regular expression (RE2's syntax): {reason}") from None
    return expression


@lru_cache(maxsize=_KEPT)
def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return re2.compile(expression.encode(errors="replace"), options)


def _text(found: bytes | str) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found
