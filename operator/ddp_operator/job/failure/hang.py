"""The ranks that a hanging job waits for, as its launchers' answers show."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hang:
    """Who keeps the others waiting, and where."""

    ranks: tuple[int, ...] = ()
    """Empty if the answers name none."""
    sentence: str = ""
    """Empty if the answers show nothing."""


NOTHING_KNOWN = Hang()
