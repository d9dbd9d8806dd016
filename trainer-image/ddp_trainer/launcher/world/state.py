"""What a launcher knows of the group: its pod's place, and who has failed for good.

Nothing here acts: threads that serve requests tell and ask, and the one that starts ranks looks.
Whatever is told comes from the operator, perhaps twice, late, or from one that was replaced long
ago: a place counts by its generation alone, which never goes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ddp_trainer.launcher.world.letters import Failure, Letter, Refusal
from ddp_trainer.membership.place import Place

LONGEST_WAIT_SECONDS = 25
"""Of who asks for news: below what proxies on the way allow to an answer, 30 s as a rule."""
_WAITING = 2
"""An operator, and the one that takes over from it; each takes a thread."""
_FAILURES = 64
"""The first ones, among which the cause is; what follows from it may be thousands."""
_LISTENS_SECONDS = 600.0
"""For how long somebody counts as listening who has asked once."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What the operator asks the pod of node rank 0 for."""

    number: int
    """Grows whenever anything else here changes."""
    generation: int
    scope: Literal["Pod", "InPlace"]
    """How ranks get into another group: by themselves, or started anew."""
    failures: tuple[Failure, ...]
    """Of this generation, in the order in which they came."""


class World:
    """All of it; its methods may be called from any thread."""

    def __init__(
        self,
        born: Place,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`born`: the place that the pod was made with.

        `wake`: called when there is something new to act on, or somebody asks.
        `clock`: in seconds, never going back.
        """
        self.born = born
        self._place = born
        self._wake = wake
        self._clock = clock
        self._changed = threading.Condition()
        self._number = 1
        self._scope: Literal["Pod", "InPlace"] = "InPlace"
        self._failures: list[Failure] = []
        self._waiting: deque[object] = deque(maxlen=_WAITING)
        self._asked_at: float | None = None
        self._ranks_of: int | None = None
        self._is_warm = False

    @property
    def place(self) -> Place:
        """The newest; the same object as long as nothing has changed."""
        return self._place

    def take(self, place: Place) -> bool:
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
            if place.generation == known.generation and (known.start or not place.start):
                return True
            self._place = place
            if place.generation > known.generation:
                self._failures.clear()
                self._tell()
        self._wake()
        return True

    def begin(self, place: Place) -> bool:
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

    def is_ready_for(self, place: Place, *, wait_seconds: float) -> bool:
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

    def note(self, letter: Letter) -> Refusal | None:
        """Keep the news that a pod's ranks have failed for good, for whoever asks.

        Returns:
            None: it is noted, now or before.
        """
        with self._changed:
            if (letter.job_uid, letter.attempt) != (self._place.job_uid, self._place.attempt):
                return Refusal(error="node rank 0 is of another job or attempt")
            generation = self._place.generation
            if letter.generation != generation:
                error = f"node rank 0 is in generation {generation}"
                return Refusal(error=error, generation=generation)
            if self._asked_at is None or self._clock() - self._asked_at > _LISTENS_SECONDS:
                return Refusal(error="the operator does not ask node rank 0 for such news")
            known = any(failure.pod == letter.pod for failure in self._failures)
            if not known and len(self._failures) < _FAILURES:
                self._failures.append(letter.failure())
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
            self._changed.wait_for(
                lambda: self._number > after or this not in self._waiting, wait_seconds
            )
            if this in self._waiting:
                self._waiting.remove(this)
            return News(
                number=self._number,
                generation=self._place.generation,
                scope=self._scope,
                failures=tuple(self._failures),
            )

    def _tell(self) -> None:
        self._number += 1
        self._changed.notify_all()
