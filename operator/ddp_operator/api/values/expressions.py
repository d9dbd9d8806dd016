"""Regular expressions that users write.

Python's own engine tries every way to match: a pattern such as `(a+)+$` would keep it, and the
operator, busy forever. pydantic's engine, the Rust crate `regex`, can use megabytes for a few
letters, such as `\\w{170}`. RE2 takes time in proportion to the text, and its memory is limited
here. The API server's own rules use the same syntax.
"""

from functools import lru_cache
from itertools import islice
from typing import Any

import re2

_MEMORY_BYTES = 1 << 16
"""For one expression and its search; people's expressions need a tenth."""
_KEPT = 256
"""Expressions that stay compiled: at most 32 MB, since RE2 compiles some from both ends."""
_KEPT_ANSWERS = 4096
"""Cached results of whether an expression matches a text: each reconcile asks again about a failed
pod. At most 20 MB, with texts as long as a failure's message may be."""
_MATCHES = 8
"""Matches per line; each may take as long as the first."""


@lru_cache(maxsize=_KEPT_ANSWERS)
def search(expression: str, text: str) -> bool:
    """Return whether a valid expression matches somewhere in a text."""
    # Text that no encoding has, such as half a surrogate pair, matches nothing.
    return _compiled(expression).search(text.encode(errors="replace")) is not None


def groups(expression: str, line: bytes) -> dict[str, str]:
    """Return what the named groups of a valid expression hold in a line: for each group its last
    match. Groups that take no part are left out.
    """
    compiled = _compiled(expression)
    return {
        _text(name): _text(found.group(index))
        for found in islice(compiled.finditer(line), _MATCHES)
        for name, index in compiled.groupindex.items()
        if found.group(index) is not None
    }


def group_names(expression: str) -> set[str]:
    """Return the names of a valid expression's groups."""
    return {_text(name) for name in _compiled(expression).groupindex}


def valid(expression: str) -> str:
    """Return the expression if RE2 can search for it.

    Raises:
        ValueError: RE2 cannot. The text says what is wrong.
    """
    try:
        _compiled(expression)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "unknown"
        raise ValueError(f"not a regular expression (RE2 syntax): {reason}") from None
    return expression


@lru_cache(maxsize=_KEPT)
def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return re2.compile(expression.encode(errors="replace"), options)


def _text(found: bytes | str) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found
