"""When node rank 0 leads: the operator is silent, and other pods could report a cause. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ddp_protocol.world import LEAD_SECONDS

_PAUSES = (3.0, 300.0)
"""First and longest delay of a restart, in which other pods may report the cause. It doubles after
each generation that failed at once."""
_AT_ONCE_SECONDS = 10.0


class LeadTimer:
    """Measures the operator's silence, and the time since something waits for a decision."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self.asked_at: float | None = None
        """When the operator was last seen; None: never."""
        self._promise: float = LEAD_SECONDS
        self._undecided_since = 0.0
        self._began_at = 0.0
        self._pause = _PAUSES[0]

    def asked(self, lead_seconds: float) -> None:
        """Note that the operator asks, and promises to ask again within `lead_seconds`."""
        self.asked_at, self._promise = self._clock(), lead_seconds

    def answered(self) -> None:
        """Note that the operator waited for the answer."""
        self.asked_at = self._clock()

    def began(self) -> None:
        """Note a new assignment."""
        self._undecided_since = self._began_at = self._clock()

    def failed(self, *, led: bool) -> None:
        """Note the first failure of a generation. `led`: a launcher began that generation."""
        self._undecided_since = self._clock()
        least, most = _PAUSES
        at_once = led and self._clock() - self._began_at < _AT_ONCE_SECONDS
        self._pause = min(self._pause * 2, most) if at_once else least

    def due(self, *, failures: int, nodes: int) -> float | None:
        """Return when to lead; None: not before the operator has asked.

        `failures`: how many of `nodes` pods have failed; 0: the group waits for its start.
        """
        if self.asked_at is None:
            return None
        pause, silence = self._pause, float(LEAD_SECONDS)
        if failures:
            silence = self._promise
            if pause == _PAUSES[0] and failures >= nodes:
                pause = 0.0  # no other pod can report a cause
        return max(self.asked_at + silence, self._undecided_since + pause)
