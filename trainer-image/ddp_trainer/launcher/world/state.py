"""What a launcher knows of the group: its pod's place, and who has failed for good.

Nothing here acts: threads that serve requests tell and ask, and the one that starts ranks looks.
Whatever is told comes from the operator, perhaps twice, late, or from one that was replaced long
ago: a place counts by its generation alone, which never goes back. While the operator is away, the
launcher of node rank 0 leads (`leading`): it tells the others of generations with the same pods.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_trainer.launcher.local_checkpoints import LocalCheckpoints
from ddp_trainer.launcher.world.failure_reports import (
    Failure,
    FailureReport,
    Refusal,
    within_bounds,
)
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.telemetry.wire import utc

LONGEST_WAIT_SECONDS = 25
"""Of who asks for news: below what proxies on the way allow to an answer, 30 s as a rule."""
_WAITING = 2
"""An operator, and the one that takes over from it; each takes a thread."""
_FAILURES = 64
"""The first ones, among which the cause is; what follows from it may be thousands."""
_LISTENS_SECONDS = 600.0
"""For how long somebody counts as listening who has asked once."""
LEAD_SECONDS = 30.0
"""How long nobody has asked when node rank 0 leads: longer than an operator takes to start again or
to be followed by another one, which asks every 20 s."""
_LEAD_PAUSES = (5.0, 300.0)
"""How long a failure waits then: twice as long after each generation that failed at once."""
_AT_ONCE_SECONDS = 10.0
_LOOK_SECONDS = 2.0
"""Between two looks at the pod's disk, while the operator waits for news."""
_LED = 64
"""Generations that nobody has heard of: the newest, of a count that the generation itself tells."""
_FAILURES_LED = 2
"""Of each of these, the first ones."""


@dataclass(frozen=True, kw_only=True)
class Led:
    """A generation that began while the operator was away."""

    generation: int
    time: str
    """When its ranks could start: UTC, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What the operator asks the pod of node rank 0 for."""

    number: int
    """Grows whenever anything else here changes."""
    generation: int
    scope: Literal["Pod", "InPlace"]
    """How ranks get into another group: by themselves, or started anew."""
    failures: tuple[Failure, ...]
    """In the order in which they came: of this generation, and those that others were led for."""
    members: str | None = None
    """The slots of the group's pods, where node rank 0 may lead."""
    led: tuple[Led, ...] | None = None
    """The generations up to this one that the operator has not told of."""
    saved_in_pod: bool | None = None
    """Whether ranks have saved to this pod's own disk, which no other pod sees."""


class World:
    """All of it; its methods may be called from any thread."""

    def __init__(
        self,
        born: Assignment,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        local_checkpoints: LocalCheckpoints | None = None,
    ) -> None:
        """`born`: the place that the pod was made with.

        `wake`: called when there is something new to act on, or somebody asks.
        `clock`: in seconds, never going back.
        `local_checkpoints`: None: no rank saves to the pod's own disk.
        """
        self.born = born
        self._local_checkpoints = local_checkpoints or LocalCheckpoints((), since=0.0)
        self._place = born
        self._wake = wake
        self._clock = clock
        self._changed = threading.Condition()
        self._number = 1
        self._scope: Literal["Pod", "InPlace"] = "InPlace"
        self._failures: list[Failure] = []
        self._led = False
        """Whether the known generation was begun by a launcher, and the operator says nothing of it
        yet."""
        self._led_before: list[Led] = []
        self._failures_before: list[Failure] = []
        """What generations were led for."""
        self._undecided_since = 0.0
        """When what is undecided came to be so: the first failure, or a place to wait in."""
        self._began_at = 0.0
        """When the present place was told."""
        self._lead_pause, _ = _LEAD_PAUSES
        self._waiting: deque[object] = deque(maxlen=_WAITING)
        self._asked_at: float | None = None
        self._ranks_of: int | None = None
        self._is_warm = False

    @property
    def place(self) -> Assignment:
        """The newest; the same object as long as nothing has changed."""
        return self._place

    def take(self, place: Assignment) -> bool:
        """Note the pod's place, if it is news.

        Returns:
            Whether this is now what is known; false: a higher generation is, or it is of another
            job or attempt.
        """
        with self._changed:
            known = self._place
            if (place.job_uid, place.attempt) != (known.job_uid, known.attempt):
                return False
            if place.generation < known.generation:
                return False
            if place.generation == known.generation:
                if not self._is_the_same(place):
                    return False
                if known.start or not place.start:
                    return True
            self._replace(place)
        self._wake()
        return True

    def _is_the_same(self, place: Assignment) -> bool:
        """Whether a place is of the very generation that is known by its number: the operator may
        know another one by it that was led meanwhile, or have accepted that one.
        """
        known = self._place
        if place.led and self._led:
            return place.leader == known.leader
        if place.led:
            return False
        if self._led:
            if place.leader != known.leader or (known.members and place.members != known.members):
                return False
            self._led = False
            self._forget_led()
            self._tell()
        return True

    def _replace(self, place: Assignment) -> None:
        is_next = place.generation > self._place.generation
        if is_next:
            self._led = place.led
            self._failures_before += self._failures[:_FAILURES_LED]
            self._failures.clear()
            if not place.led:
                self._forget_led()
        if self._led and place.start:
            self._led_before.append(Led(generation=place.generation, time=utc(time.time())))
            del self._led_before[:-_LED]
            del self._failures_before[: -_LED * _FAILURES_LED]
        self._place = place
        self._undecided_since = self._began_at = self._clock()
        if is_next or self._led:
            self._tell()
        self._changed.notify_all()

    def _forget_led(self) -> None:
        self._led_before.clear()
        self._failures_before.clear()

    @property
    def failures(self) -> Sequence[Failure]:
        """Of the present generation, in the order in which they came."""
        with self._changed:
            return tuple(self._failures)

    @property
    def is_led(self) -> bool:
        """Whether a launcher began the generation that is known."""
        return self._led

    def wait_to_lead(self) -> Assignment:
        """Wait until node rank 0, which this pod must be, is to lead the next generation: until
        nobody has decided about a failure, or has let ranks start, for so long.

        Returns:
            The present place.
        """
        with self._changed:
            while True:
                due = self._due_to_lead()
                now = self._clock()
                if due is not None and due <= now:
                    return self._place
                self._changed.wait(None if due is None else due - now)

    def _due_to_lead(self) -> float | None:
        """None: not before something changes."""
        place = self._place
        if place.node_rank != 0 or not place.members or self._asked_at is None or self._waiting:
            return None
        if not (self._failures or not (place.start or self._led)):
            return None
        if place.nodes > 1 and self._local_checkpoints.exist():
            return None  # the other pods would begin without what this one has saved
        return max(self._asked_at + LEAD_SECONDS, self._undecided_since + self._lead_pause)

    def _next_lead_pause(self) -> float:
        least, most = _LEAD_PAUSES
        at_once = self._led and self._clock() - self._began_at < _AT_ONCE_SECONDS
        return min(self._lead_pause * 2, most) if at_once else least

    def begin(self, place: Assignment) -> bool:
        """Ranks run in this place from here on, unless another one is known by now: whoever was
        told of that has heard that none run.
        """
        with self._changed:
            if self._place is not place:
                return False
            self._ranks_of = place.generation
            return True

    def ranks_run(self, generation: int | None) -> None:
        """Ranks of a generation run from here on; None: none do."""
        with self._changed:
            self._ranks_of = generation
            self._changed.notify_all()

    def waits(self, *, is_warm: bool) -> None:
        """No rank is to run in this pod for now; `is_warm`: one would start at once."""
        with self._changed:
            self._is_warm = is_warm
            self._changed.notify_all()

    def is_ready_for(self, place: Assignment, *, wait_seconds: float) -> bool:
        """Whether no ranks of an earlier generation run, and, where a pod is to wait without a
        place, whether its ranks would start at once; at the latest after so long.

        Where they did, processes that start anew in other pods could take them for their peers.
        """

        def is_done() -> bool:
            ended = self._ranks_of is None or self._ranks_of >= place.generation
            return ended and (place.node_rank is not None or self._is_warm)

        with self._changed:
            return self._changed.wait_for(is_done, wait_seconds)

    def joined(self) -> None:
        """Ranks of this pod can form their group anew by themselves."""
        with self._changed:
            if self._scope != "Pod":
                self._scope = "Pod"
                self._tell()

    def note(self, report: FailureReport) -> Refusal | None:
        """Keep the news that a pod's ranks have failed for good, for whoever asks.

        Returns:
            None: it is noted, now or before.
        """
        with self._changed:
            if (report.job_uid, report.attempt) != (self._place.job_uid, self._place.attempt):
                return Refusal(error="node rank 0 is of another job or attempt")
            generation = self._place.generation
            if report.generation != generation:
                error = f"node rank 0 is in generation {generation}"
                return Refusal(error=error, generation=generation)
            asked_at = self._asked_at
            silent = asked_at is None or self._clock() - asked_at > _LISTENS_SECONDS
            if silent and (asked_at is None or not self._place.members):
                return Refusal(error="the operator does not ask node rank 0 for such news")
            known = any(failure.pod == report.pod for failure in self._failures)
            if not known and len(self._failures) < _FAILURES:
                if not self._failures:
                    self._undecided_since = self._clock()
                    self._lead_pause = self._next_lead_pause()
                self._failures.append(report.failure())
                self._tell()
            return None

    def news(self, *, after: int, wait_seconds: float) -> News:
        """What is known, as soon as its number is above `after`, or after so many seconds.

        Only the newest few wait: others get their answer at once.
        """
        self._wake()  # for what nobody has looked at yet, such as whether ranks have joined
        with self._changed:
            self._asked_at = self._clock()
            this = object()
            self._waiting.append(this)
            self._changed.notify_all()
            self._wait_for_news(
                lambda: self._number > after or this not in self._waiting, wait_seconds
            )
            if this in self._waiting:
                self._waiting.remove(this)
                self._asked_at = self._clock()
                self._changed.notify_all()
            return News(
                number=self._number,
                generation=self._place.generation,
                scope=self._scope,
                failures=within_bounds(self._failures_before, self._failures),
                members=self._place.members or None,
                led=tuple(self._led_before) or None,
                saved_in_pod=self._local_checkpoints.exist() or None,
            )

    def _wait_for_news(self, is_news: Callable[[], bool], seconds: float) -> None:
        while True:
            if self._local_checkpoints.may_come and self._local_checkpoints.exist():
                self._tell()
            may_come = self._local_checkpoints.may_come
            pause = min(seconds, _LOOK_SECONDS) if may_come else seconds
            seconds -= pause
            if self._changed.wait_for(is_news, pause) or seconds <= 0:
                return

    def _tell(self) -> None:
        self._number += 1
        self._changed.notify_all()
