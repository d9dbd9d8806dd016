"""A clock that tests set."""

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock in seconds."""

    now: float

    def __call__(self) -> float:
        return self.now
