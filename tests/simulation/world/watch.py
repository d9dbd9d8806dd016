"""One watch stream of an operator, with everything that befalls such streams."""

from collections import deque
from collections.abc import Callable

from ddp_operator.ports import Manifest

from tests.simulation.clock import VirtualLoop

LAG_SECONDS = 0.02
"""Delay of a healthy watch."""

_KEPT = 6


class Watch:
    """Delivers events in order, `LAG_SECONDS` late; after a failure it lists again."""

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        deliver: Callable[[str, Manifest], None],
        relist: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._relist = relist
        self._underway: deque[tuple[str, Manifest]] = deque()
        self._lately: deque[tuple[str, Manifest]] = deque(maxlen=_KEPT)
        self._resumes_at = 0.0
        self._pumping = False
        self._broken = False

    def push(self, kind: str, manifest: Manifest) -> None:
        """Take an event from the server."""
        if not self._broken:
            self._underway.append((kind, manifest))
            self._lately.append((kind, manifest))
            self._pump_later()

    def stall(self, seconds: float) -> None:
        """Deliver nothing for so long."""
        self._resumes_at = max(self._resumes_at, self._loop.time() + seconds)

    def lose(self, seconds: float) -> None:
        """Lose what was not delivered yet and all events for so long; then list."""
        self._broken = True
        self._underway.clear()
        self._loop.call_later(seconds, self._reconnect)

    def repeat(self, seconds: float) -> None:
        """Deliver the latest events again, in another order; list after so long."""
        self._underway.extend(reversed(self._lately))
        self._pump_later()
        self._loop.call_later(seconds, self._reconnect)

    def heal(self) -> None:
        """End all trouble now."""
        self._resumes_at = 0.0
        self._reconnect()

    def _pump_later(self) -> None:
        if not self._pumping:
            self._pumping = True
            due = max(self._loop.time() + LAG_SECONDS, self._resumes_at)
            self._loop.call_at(due, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._resumes_at > self._loop.time():
            self._pump_later()
            return
        while self._underway:
            self._deliver(*self._underway.popleft())

    def _reconnect(self) -> None:
        self._broken = False
        self._underway.clear()  # the list tells all of it
        self._relist()
