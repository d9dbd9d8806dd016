"""Holds a launcher's state of the group: its pod's assignment, and pods that failed permanently.

Nothing here acts. Threads that serve requests write and read the state; the thread that starts
ranks reads it. Assignments come from the operator, perhaps twice, late, or from an old operator.
Only the generation decides which one counts, and it never decreases. While the operator is away,
the launcher of node rank 0 leads (`leading`): it begins generations with the same pods.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from ddp_protocol.copies import fingerprint
from ddp_protocol.message import utc
from ddp_protocol.world import (
    LEAD_SECONDS,
    MAX_FAILURES,
    MAX_FAILURES_LED,
    MAX_LED,
    FailureReport,
    LauncherStatus,
    Led,
    MemoryReport,
    Pause,
    PodFailure,
)

from ddp_trainer.launcher.local_checkpoints import LocalCheckpoints
from ddp_trainer.launcher.world.failure_reports import Refusal, within_bounds
from ddp_trainer.launcher.world.lead_timer import LeadTimer
from ddp_trainer.process_group.assignment import Assignment

LONGEST_WAIT_SECONDS = 25
"""Limit of a request for news: below the usual timeout of proxies, 30 s."""
_WAITING = 2
"""Requests that may wait: one of an operator, one of its successor. Each takes a thread."""
_LISTENS_SECONDS = 600.0
"""How long a client counts as listening after its last request."""
_LOOK_SECONDS = 2.0
"""Interval between checks of the pod's disk, and of its connection, while the operator waits for
news."""


class GroupState:
    """The whole state. Its methods are thread-safe."""

    def __init__(
        self,
        initial: Assignment,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        local_checkpoints: LocalCheckpoints | None = None,
    ) -> None:
        """`initial`: the assignment that the pod was created with.

        `wake`: called when the state changes, and on requests.
        `clock`: monotonic, in seconds.
        `local_checkpoints`: None: no rank saves to the pod's own disk.
        """
        self.initial = initial
        self._local_checkpoints = local_checkpoints or LocalCheckpoints((), since=0.0)
        self._assignment = initial
        self._wake = wake
        self._clock = clock
        self._changed = threading.Condition()
        self._number = 1
        self._scope: Literal["Pod", "InPlace"] = "InPlace"
        self._failures: list[PodFailure] = []
        self._led = False
        """True: a launcher began this generation, and the operator has not accepted it yet."""
        self._led_before: list[Led] = []
        self._failures_before: list[PodFailure] = []
        """Failures that led to restarts without the operator."""
        self._timer = LeadTimer(clock)
        self._waiting: deque[object] = deque(maxlen=_WAITING)
        self._heard_at = clock()
        self._ranks_of: int | None = None
        self._is_warm = False
        self._remark = ""
        self._copy_order = ""
        self._pause_wanted = False
        self._pause: Pause | None = None
        self.wake_memory: Callable[[], None] = lambda: None
        """Called when the request for a pause changes."""
        self.memory: Callable[[], MemoryReport | None] = lambda: None
        """Returns the news of snapshots in memory; called while the state is locked."""

    @property
    def assignment(self) -> Assignment:
        """The newest assignment; the same object until it changes."""
        return self._assignment

    @property
    def copy_order(self) -> str:
        """The order by which this group places copies; it may change within a generation."""
        return self._copy_order

    def accept(self, assignment: Assignment) -> bool:
        """Store an assignment of the pod, if it is new.

        Returns:
            True: it is the current one now. False: the pod has a higher generation, or it belongs
            to another job or attempt.
        """
        with self._changed:
            known = self._assignment
            if (assignment.job_uid, assignment.attempt) != (known.job_uid, known.attempt):
                return False
            self._heard_at = self._clock()
            if assignment.generation < known.generation:
                return False
            if assignment.generation == known.generation:
                if not self._is_the_same(assignment):
                    return False
                if not assignment.led:
                    if assignment.copy_order:
                        self._set_copy_order(assignment.copy_order)
                    self._want_pause(assignment.pause)
                if known.start or not assignment.start:
                    return True
            self._replace(assignment)
        self._wake()
        return True

    def _is_the_same(self, assignment: Assignment) -> bool:
        """Return True if the assignment is of the generation that this pod has.

        A launcher may have begun one with the same number while the operator was away. The operator
        either accepts that one or has its own.
        """
        known = self._assignment
        if assignment.led and self._led:
            return assignment.leader == known.leader
        if assignment.led:
            return False
        if self._led:
            if (
                assignment.leader != known.leader
                or (known.members and assignment.members != known.members)
                or assignment.code not in ("", known.code)
            ):
                return False
            self._led = False
            self._forget_led()
            self._tell()
        return True

    def _replace(self, assignment: Assignment) -> None:
        is_next = assignment.generation > self._assignment.generation
        if is_next:
            self._led, self._remark = assignment.led, ""
            self._pause = "" if self._pause is not None else None
            self._want_pause(False)
            if not assignment.led:  # otherwise the pods are the same
                self._set_copy_order(assignment.copy_order)
            self._failures_before += self._failures[:MAX_FAILURES_LED]
            self._failures.clear()
            if not assignment.led:
                self._forget_led()
        if self._led and assignment.start:
            self._led_before.append(Led(generation=assignment.generation, time=utc(time.time())))
            del self._led_before[:-MAX_LED]
            del self._failures_before[: -MAX_LED * MAX_FAILURES_LED]
        self._assignment = assignment
        self._timer.began()
        if is_next or self._led:
            self._tell()
        self._changed.notify_all()

    def _set_copy_order(self, order: str) -> None:
        if order != self._copy_order:
            self._copy_order = order
            self._tell()
            self._wake()

    def _want_pause(self, wanted: bool) -> None:
        if wanted != self._pause_wanted:
            self._pause_wanted = wanted
            self.wake_memory()

    def is_pause_wanted(self, generation: int) -> bool:
        """Return whether rank 0 of a generation is to pause after its next snapshot."""
        with self._changed:
            return self._pause_wanted and generation == self._assignment.generation

    def set_pause(self, pause: Pause, generation: int) -> None:
        """Give the operator the state of that pause, unless the group has restarted."""
        with self._changed:
            if generation == self._assignment.generation and pause != self._pause:
                self._pause = pause
                self._tell()

    def _forget_led(self) -> None:
        self._led_before.clear()
        self._failures_before.clear()

    @property
    def failures(self) -> Sequence[PodFailure]:
        """Failures of the current generation, in order of arrival."""
        with self._changed:
            return tuple(self._failures)

    @property
    def silence_seconds(self) -> float:
        """Time since the last request of the operator, or of a launcher that leads without it."""
        return self._clock() - self._heard_at

    @property
    def is_led(self) -> bool:
        """True: a launcher began the current generation, not the operator."""
        return self._led

    def wait_to_lead(self) -> Assignment:
        """Wait until node rank 0, which is this pod, must begin the next generation.

        That is when the operator has not decided about a failure, or has not let ranks start, for
        too long.

        Returns:
            The current assignment.
        """
        with self._changed:
            while True:
                due = self._due_to_lead()
                now = self._clock()
                if due is not None and due <= now:
                    return self._assignment
                self._changed.wait(None if due is None else due - now)

    def _due_to_lead(self) -> float | None:
        """Return when to begin the next generation; None: not before a change."""
        assignment = self._assignment
        if assignment.node_rank != 0 or not assignment.members or self._waiting:
            return None
        if not (self._failures or not (assignment.start or self._led)):
            return None
        if assignment.nodes > 1 and self._local_checkpoints.exist():
            return None  # other pods would start without the checkpoints on this pod's disk
        return self._timer.due(failures=len(self._failures), nodes=assignment.nodes)

    def begin(self, assignment: Assignment) -> bool:
        """Record that ranks start with this assignment; False if there is another one by now.

        The sender of that one was told that no ranks run.
        """
        with self._changed:
            if self._assignment is not assignment:
                return False
            self._ranks_of = assignment.generation
            return True

    def ranks_run(self, generation: int | None) -> None:
        """Record that ranks of a generation run; None: no ranks run."""
        with self._changed:
            self._ranks_of = generation
            self._changed.notify_all()

    def waits(self, *, is_warm: bool) -> None:
        """Record that the pod waits without ranks. `is_warm`: ranks would start at once."""
        with self._changed:
            self._is_warm = is_warm
            self._changed.notify_all()

    def is_ready_for(self, assignment: Assignment, *, wait_seconds: float) -> bool:
        """Wait until no ranks of an earlier generation run; return whether that is so.

        Processes that restart in other pods could mistake old ranks for their peers. A pod without
        a node rank must also be warm. Waits at most `wait_seconds`.
        """

        def is_done() -> bool:
            ended = self._ranks_of is None or self._ranks_of >= assignment.generation
            return ended and (assignment.node_rank is not None or self._is_warm)

        with self._changed:
            return self._changed.wait_for(is_done, wait_seconds)

    def joined(self) -> None:
        """Record that the ranks of this pod can form their group again by themselves."""
        with self._changed:
            if self._scope != "Pod":
                self._scope = "Pod"
                self._tell()

    def note(self, report: FailureReport) -> Refusal | None:
        """Store a report that a pod's ranks have failed permanently.

        Returns:
            Why it is refused; None: it is stored, now or earlier.
        """
        with self._changed:
            known = self._assignment
            if (report.job_uid, report.attempt) != (known.job_uid, known.attempt):
                return Refusal(error="node rank 0 belongs to another job or attempt")
            generation = known.generation
            if report.generation != generation:
                error = f"node rank 0 is in generation {generation}"
                return Refusal(error=error, generation=generation)
            asked_at = self._timer.asked_at
            silent = asked_at is None or self._clock() - asked_at > _LISTENS_SECONDS
            if silent and (asked_at is None or not known.members):
                return Refusal(error="the operator does not poll node rank 0 for failures")
            is_new = all(failure.pod != report.pod for failure in self._failures)
            if is_new and len(self._failures) < MAX_FAILURES:
                if not self._failures:
                    self._timer.failed(led=self._led)
                self._failures.append(report.failure())
                self._tell()
            return None

    def set_remark(self, remark: str) -> None:
        """Give the operator a remark about the ranks of the present generation."""
        with self._changed:
            if remark != self._remark:
                self._remark = remark
                self._tell()

    def restore_decided(self) -> None:
        """Record that `memory` returns a new decision about a restore."""
        with self._changed:
            self._tell()

    def news(
        self,
        *,
        after: int,
        wait_seconds: float,
        lead_seconds: float = LEAD_SECONDS,
        has_hung_up: Callable[[], bool] = lambda: False,
    ) -> LauncherStatus:
        """Return the news once its number is above `after`, or after `wait_seconds`.

        Only the newest few requests wait; older ones are answered at once.

        `lead_seconds`: how soon the client asks again; later, this launcher decides about failures.
        `has_hung_up`: tells whether the client has stopped waiting for the answer.
        """
        self._wake()  # so that the supervisor checks, for example, whether ranks have joined
        with self._changed:
            self._timer.asked(lead_seconds)
            self._heard_at = self._clock()
            this = object()
            self._waiting.append(this)
            self._changed.notify_all()
            self._wait_for_news(
                lambda: self._number > after or this not in self._waiting,
                wait_seconds,
                has_hung_up,
            )
            if this in self._waiting:
                self._waiting.remove(this)
                if not has_hung_up():  # otherwise it was last there when it asked, as far as known
                    self._timer.answered()
                self._changed.notify_all()
            return LauncherStatus(
                number=self._number,
                generation=self._assignment.generation,
                scope=self._scope,
                failures=within_bounds(self._failures_before, self._failures),
                members=self._assignment.members,
                led=tuple(self._led_before),
                saved_in_pod=self._local_checkpoints.exist(),
                memory=self.memory(),
                code=self._assignment.code,
                remark=self._remark,
                copy_order=fingerprint(self._copy_order),
                pause=self._pause,
            )

    def _wait_for_news(
        self, is_news: Callable[[], bool], seconds: float, has_hung_up: Callable[[], bool]
    ) -> None:
        while True:
            if self._local_checkpoints.may_come and self._local_checkpoints.exist():
                self._tell()
            pause = min(seconds, _LOOK_SECONDS)
            seconds -= pause
            if self._changed.wait_for(is_news, pause) or seconds <= 0 or has_hung_up():
                return

    def _tell(self) -> None:
        self._number += 1
        self._changed.notify_all()
