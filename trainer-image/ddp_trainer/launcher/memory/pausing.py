"""Pauses rank 0 after a snapshot, until other pods take the places of some; for node rank 0.

The operator requests it, and lets the group restart as soon as the pause is on record. Without
rank 0, no other rank completes the next step, so all resume where they were.
"""

from __future__ import annotations

import logging

from ddp_protocol.world import Pause

from ddp_trainer.launcher.memory.group import GenerationMemory
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.memory.pausing import PauseRequest

_SNAPSHOT_SECONDS = 600.0
"""How long to wait for a snapshot. The operator then restarts the group without a pause."""
_PAUSE_SECONDS = 120.0
"""How long rank 0 may pause: for the copies of its step, and then for the operator. The others wait
in a collective meanwhile, whose usual timeout is ten minutes."""

_logger = logging.getLogger(__name__)


class Pausing:
    """The pause of the present generation; for the thread that keeps snapshots."""

    def __init__(self, request: PauseRequest, world: GroupState) -> None:
        """`request`: for rank 0, in the volume of this pod; an earlier one is withdrawn."""
        self._request = request
        self._world = world
        self._group: GenerationMemory | None = None
        self._state: Pause = ""
        self._paused_at: int | None = None
        """The step after which rank 0 pauses; None: it trains."""
        self._snapshot_by = self._until = 0.0
        request.withdraw()

    def note(self, report: RankReport) -> None:
        """Take a rank's report; call `look` afterwards."""
        group = self._group
        if group is None or not report.paused or report.rank != 0:
            return
        if report.generation == group.pod.generation and self._state in ("Requested", "Paused"):
            self._paused_at = report.step

    def look(self, group: GenerationMemory | None, now: float) -> float | None:
        """Begin, continue or end a pause.

        `now`: monotonic time in seconds.

        Returns:
            When to look again, if nothing happens before; None: wait for an event.

        Raises:
            OSError: the request cannot be written.
        """
        if group is not self._group:
            self._group = group
            self._end("")
        if group is None or group.leading is None:
            return None
        generation = group.pod.generation
        if not self._world.is_pause_wanted(generation):
            if self._state:
                self._end("")
        elif not self._state:
            self._request.make(after=-1)
            self._state, self._snapshot_by = "Requested", now + _SNAPSHOT_SECONDS
            self._until = self._snapshot_by
            _logger.info("memory: rank 0 is to pause after its next snapshot")
        elif self._state != "Missed":
            self._follow(group, now)
        self._world.set_pause(self._state, generation)
        return self._until if self._state in ("Requested", "Paused") else None

    def _follow(self, group: GenerationMemory, now: float) -> None:
        assert group.leading is not None
        completeness, step = group.leading.completeness, self._paused_at
        if step is not None and self._state == "Requested":
            self._until = min(self._until, now + _PAUSE_SECONDS)
            if completeness.complete is not None and completeness.complete >= step:
                self._state, self._until = "Paused", now + _PAUSE_SECONDS
                _logger.info("memory: rank 0 pauses after step %d", step)
            elif not completeness.can_complete(step):  # another pod skipped it
                self._request.make(after=step)
                self._paused_at, self._until = None, self._snapshot_by
        if now >= self._until:
            what = "no snapshot" if self._paused_at is None else "no restart"
            _logger.warning("memory: %s came in time: rank 0 does not pause any more", what)
            self._end("Missed")

    def _end(self, state: Pause) -> None:
        self._request.withdraw()
        self._state, self._paused_at = state, None
