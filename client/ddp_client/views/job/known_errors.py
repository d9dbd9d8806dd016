"""Error texts whose meaning and remedy are known."""

from functools import cache
from typing import Any

import re2
from ddp_operator.job.failure.symptoms import deciding_exception, is_of_another_rank
from ddp_protocol.error_texts import KNOWN, WITH_REASON, Class, Known


def known_error(message: str, reason: str = "") -> Known | None:
    """Return the known error in a message; `reason`: the kubelet's, if it wrote the message.

    Text about a broken node counts anywhere, as in `is_of_node`. Otherwise the exception that ended
    a Python program counts, not the log around it.
    """
    said = deciding_exception(message) or message
    lost_another = is_of_another_rank(message)
    for each, pattern in _compiled(reason if reason in WITH_REASON else ""):
        if each.class_ in (Class.GLOO, Class.PEER) and not lost_another:
            continue
        if pattern.search(message if each.class_ in (Class.DEVICE, Class.NODE) else said):
            return each
    return None


@cache
def _compiled(reason: str) -> list[tuple[Known, Any]]:
    """Return the texts that count with this reason, in their order, and their patterns."""
    return [(each, re2.compile(each.pattern)) for each in (*WITH_REASON.get(reason, ()), *KNOWN)]
