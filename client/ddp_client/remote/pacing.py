"""How often a view that stays open reads from the API server."""

from typing import Final

LIST_SECONDS: Final = 5.0
"""Seconds between two lists of jobs."""
_SHARE: Final = 10
"""Reading takes at most a tenth of the time, however many jobs exist."""


def pause(seconds: float, *, took: float) -> float:
    """Return the seconds until the next read: at least `seconds`, more after a slow read."""
    return max(seconds, _SHARE * took)
