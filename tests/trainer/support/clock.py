"""A clock for what is given one."""

from dataclasses import dataclass


@dataclass
class Clock:
    """In seconds, as far as a test lets it."""

    now: float

    def __call__(self) -> float:
        return self.now
