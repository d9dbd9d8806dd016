"""Wall time and CPU time of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """By two clocks, in seconds."""

    wall: float
    cpu: float
    """Of this process, all threads together."""

    def __sub__(self, earlier: Moment) -> Moment:
        return Moment(self.wall - earlier.wall, self.cpu - earlier.cpu)


def now() -> Moment:
    """This moment."""
    return Moment(time.perf_counter(), time.process_time())
