"""Many writes of one plan: few until the first ones have succeeded, none once it is overtaken."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from datetime import datetime
from typing import Final, TypeVar

from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

T = TypeVar("T")
_RECHECK_SECONDS: Final = 0.2
"""How often a long plan is compared with the present state of its job."""


async def slow_start(
    do: Callable[[T], Awaitable[None]],
    items: Iterable[T],
    *,
    most: int,
    wanted: Callable[[], bool] = lambda: True,
) -> list[Exception]:
    """Call `do` with each item: first with one, then with one more at a time for every success, up
    to `most`.

    After a failure, or once the items are no longer `wanted`, no more calls start. Running calls
    finish, and all errors are returned. So there is at most one more failure than successes, for
    any number of items.
    """
    waiting = iter(items)
    errors: list[Exception] = []
    workers = 0

    async def work() -> None:
        for item in waiting:
            if not wanted():
                return
            try:
                await do(item)
            except Exception as error:
                errors.append(error)
            if errors:
                return
            add_worker()

    def add_worker() -> None:
        nonlocal workers
        if workers < most:
            workers += 1
            group.create_task(work())

    async with asyncio.TaskGroup() as group:
        add_worker()
    return errors


class OvertakenCheck:
    """Tells whether something has happened since a plan was made that needs a decision first: a
    change of the job, its deletion, or a failure.

    `is_current`: whether the job is as it was. `pods`: the job's pods. `reports`: what launchers
    and nodes report that pods do not show. `needs_decision`: whether a new plan decides.
    """

    def __init__(
        self,
        planned: Plan,
        *,
        is_current: Callable[[], bool],
        pods: Callable[[], Sequence[PodState]],
        reports: Callable[[], object],
        needs_decision: Callable[[], bool],
        clock: Callable[[], datetime],
    ) -> None:
        self._planned = planned
        self._is_current = is_current
        self._pods = pods
        self._reports = reports
        self._needs_decision = needs_decision
        self._clock = clock
        self._now = asyncio.get_running_loop().time
        self._checked_at = self._now()
        self._overtaken = False
        # As the plan saw them. Most plans write no pods and take no time.
        self._known: tuple[Set[Key], Set[Key], object] | None = None
        if planned.create or planned.create_spares or planned.delete:
            self._known = self._observed()

    def __call__(self) -> bool:
        """Return whether a decision is due."""
        if not self._is_current():
            self._overtaken = True
        elif not self._overtaken and self._now() - self._checked_at >= _RECHECK_SECONDS:
            before, now = self._known, self._observed()
            due = self._planned.requeue_at
            # Most changes only report that pods are created and start; they change no decision.
            is_news = (
                before is None or before[0] - now[0] or now[1] - before[1] or before[2] != now[2]
            )
            if is_news or (due is not None and due <= self._clock()):
                self._overtaken = self._needs_decision()
            self._known, self._checked_at = now, self._now()
        return self._overtaken

    def _observed(self) -> tuple[Set[Key], Set[Key], object]:
        """Return the pods that the plan keeps, the living ones and those that have ended or are
        ending, and the reports.
        """
        deleted = frozenset(self._planned.delete)
        alive: set[Key] = set()
        ended: set[Key] = set()
        for pod in self._pods():
            if pod.key not in deleted:
                has_ended = pod.failed or pod.disrupted or pod.succeeded
                (ended if has_ended else alive).add(pod.key)
        return alive, ended, self._reports()
