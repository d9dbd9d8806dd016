"""One line on the terminal about what takes long: what it is, since when, how long about still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from tests.cluster.cache import say

_LINE_EVERY_S = 30.0
"""Where lines cannot be rewritten, as in CI's log."""


def remaining_seconds(elapsed: float, usual: float, *, share: float = 0.0) -> float | None:
    """About how long something will yet take; None when it takes longer than anything tells.

    `elapsed`, `usual`: seconds so far, and from nothing to the end on two cores. `share`: how much
    of it is done, from 0 to 1; once that is a twentieth, the machine's own speed counts for more
    than what is usual elsewhere.
    """
    if share >= 0.05:
        return max(elapsed * (1.0 - share) / share, 0.0)
    left = usual - elapsed
    return left if left > 0 else None


def in_words(seconds: float) -> str:
    """A length of time for people: ``40 s``, ``2 min 10 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def shown(line: Callable[[float], str]) -> Iterator[None]:
    """Show a line that changes for as long as the block runs: in place on a terminal, else again
    every half minute.

    `line`: what it says after so many seconds.
    """
    console, began = Console(stderr=True), time.monotonic()

    def text() -> str:
        return line(time.monotonic() - began)

    if console.is_terminal:
        with console.status(text()) as status, _repeated(lambda: status.update(text()), 1.0):
            yield
    else:
        say(text())
        with _repeated(lambda: say(text()), _LINE_EVERY_S):
            yield


@contextmanager
def _repeated(act: Callable[[], None], every_seconds: float) -> Iterator[None]:
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
