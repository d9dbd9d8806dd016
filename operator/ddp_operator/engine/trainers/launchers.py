"""Talks to the launchers in pods: sends them changes of their job's group, and long-polls them for
process failures in running pods.

All of it happens in the background: a launcher that does not answer delays no reconcile.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Final

from ddp_protocol.message import InvalidMessageError
from ddp_protocol.world import LEAD_SECONDS, LauncherStatus, WorldAnswer

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.open_files import own_share
from ddp_operator.engine.tokens.access import Access
from ddp_operator.engine.trainers.known_launchers import KnownLaunchers
from ddp_operator.engine.trainers.launcher_pods import (
    may_listen,
    pollable,
)
from ddp_operator.engine.trainers.slots import FairSlots
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.job.membership.launchers import NO_LAUNCHERS, Assignment, LauncherStates
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.observed import with_own_address
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, Key, OutOfFilesError

logger = logging.getLogger(__name__)

_ENDED_SECONDS: Final = 5
"""How long a launcher may wait for old processes to end before it answers. Longer than processes
need that do not save, and short enough for other jobs to get their turn."""
_FIRST_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
"""Pauses before a silent launcher is asked again: short if it has answered before, growing if it
never has. Most images without a launcher would otherwise keep the operator busy: think of ten
thousand pods, each asked every 2 s."""
_SWEEP_SECONDS: Final = 60.0
"""How often to check for jobs that disappeared without an event, and to call launchers that wait.
Those end their pods after an hour without a call."""
_SWEPT_AT_ONCE: Final = 100
"""Jobs checked before other tasks may run."""
_WAIT_SECONDS: Final = 20
"""How long a launcher may hold a long poll: less than the idle time after which middleboxes drop a
connection."""
_LEAST_SECONDS: Final = 0.2
"""Shortest time between two polls: the server in a pod is foreign code and may answer without
news."""
_JITTER: Final = 0.2
"""Each pause is up to this fraction longer, so that jobs that start together drift apart."""


def pause_seconds(silent: int, *, has_answered: bool) -> float:
    """Return how long not to ask a launcher that was `silent` so many times in a row."""
    if has_answered:
        return _FIRST_PAUSE_SECONDS
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(silent - 1, 10), _LONGEST_PAUSE_SECONDS)


class Launchers:
    """The launchers of all jobs. Polling begins with `run`, and for each job with `watch`.

    `on_news` is called for a job when one of its launchers reports or confirms something.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        trainers: Trainers,
        *,
        access: Access,
        clock: Callable[[], datetime],
        on_news: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._trainers = trainers
        self._access = access
        self._clock = clock
        self._on_news = on_news
        self._known: dict[Key, KnownLaunchers] = {}
        self._runs = False
        self._sending: set[asyncio.Task[None]] = set()
        # Launchers mostly wait for processes to end, or never answer. That must not delay other
        # jobs.
        self._slots: FairSlots[Key] = FairSlots(own_share().assignments)

    def of(self, job: DDPJob) -> LauncherStates:
        """Return what is known of a job's launchers."""
        known = self._known.get(job.key)
        if known is None or known.uid != job.uid:  # an earlier job of the same name
            return NO_LAUNCHERS
        return known.states(job)

    def assign(self, job: DDPJob, assignments: Iterable[Assignment]) -> None:
        """Start to send these assignments, except those already under way."""
        known = self._of(job)
        for assignment in assignments:
            which = _key_of(assignment)
            if which in known.under_way:
                continue
            known.under_way.add(which)
            self._begin(self._send(job.key, known, assignment))

    def _begin(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(request)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            self._runs = True
            while True:
                for number, key in enumerate([*self._jobs.entries, *self._known]):
                    self.watch(key)
                    self._call_waiting(key)
                    if number % _SWEPT_AT_ONCE == 0:
                        await asyncio.sleep(0)
                await asyncio.sleep(_SWEEP_SECONDS)
        finally:
            self._runs = False
            for known in self._known.values():
                known.stop_polling()
            for task in self._sending:
                task.cancel()

    def watch(self, key: Key) -> None:
        """Poll the launcher that speaks for a job now, instead of an earlier one. Stop if there is
        none.
        """
        if not self._runs:
            return
        known = self._current(key)
        if known is None or not known.leader:
            return
        task = known.polling
        if task is None or task.done():
            known.polling = asyncio.create_task(self._poll_forever(key, known))

    def _current(self, key: Key) -> KnownLaunchers | None:
        """Return a job's entry, set to the launcher to poll; None if the job needs no polling."""
        entry = self._jobs.get(key)
        job = pollable(entry.outline) if entry else None
        if job is None:
            self._forget(key)
            return None
        known, pods = self._of(job), self._cluster.pods_of(key)
        known.update(job, pods)
        return known

    def _forget(self, key: Key) -> None:
        if known := self._known.pop(key, None):
            known.stop_polling()

    def _of(self, job: DDPJob) -> KnownLaunchers:
        known = self._known.get(job.key)
        if known is None or known.uid != job.uid:
            self._forget(job.key)
            known = self._known[job.key] = KnownLaunchers(job.uid)
        return known

    async def _send(self, key: Key, known: KnownLaunchers, assignment: Assignment) -> None:
        token = self._access.token_of(known.uid, assignment.token_key)
        try:
            async with self._slots.of(key):
                sent_at = self._clock()
                said = await self._trainers.put_world(
                    assignment.address,
                    assignment.group,
                    wait_seconds=_ENDED_SECONDS,
                    token=token,
                )
        except OutOfFilesError as error:  # says nothing about the launcher; the plan retries
            logger.warning(
                "%s: cannot reach the launcher of %s yet: %s", key, assignment.pod, error
            )
            return
        finally:
            known.under_way.discard(_key_of(assignment))
        if said is None:
            self._heard_nothing(key, known, assignment.pod)
        else:
            self._heard(key, known)
        if known.note(assignment, said or WorldAnswer(0), sent_at):
            self._on_news(key)

    async def _poll_forever(self, key: Key, known: KnownLaunchers) -> None:
        """Poll the launcher of node rank 0, which collects the reports of the others."""
        now = asyncio.get_running_loop().time
        while True:
            asked_at = now()
            try:
                if await self._poll(key, known):
                    pause = max(asked_at + _LEAST_SECONDS - now(), 0.0)
                else:
                    known.silent += 1
                    pause = pause_seconds(known.silent, has_answered=known.status is not None)
                    if known.has_answered:  # otherwise the image has none
                        self._heard_nothing(key, known, known.leader)
            except OutOfFilesError as error:
                logger.debug("%s: its launcher is not polled: %s", key, error)
                pause = _FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause * random.uniform(1, 1 + _JITTER))

    async def _poll(self, key: Key, known: KnownLaunchers) -> bool:
        """Poll once, and return whether the launcher has answered."""
        asked = known.leader
        answer = await self._trainers.poll_world(
            known.address,
            after=known.status.number if known.status else 0,
            wait_seconds=_WAIT_SECONDS,
            lead_seconds=known.lead_seconds,
            token=self._access.token_of(known.uid, known.token_key),
        )
        try:
            said = answer if isinstance(answer, str) else LauncherStatus.read(answer)
        except InvalidMessageError as error:
            said = str(error)
        if isinstance(said, str):
            logger.debug("%s: no report from the launcher of %s: %s", key, asked, said)
            return False
        if asked != known.leader:
            return True  # another launcher is polled by now
        self._heard(key, known)
        is_news = said != known.status
        known.status, known.silent = said, 0
        if is_news:
            self._on_news(key)
        return True

    def _heard(self, key: Key, known: KnownLaunchers) -> None:
        """Note that a launcher has answered: the way to the pods is open."""
        if known.heard(self._clock()):
            self._on_news(key)

    def _heard_nothing(self, key: Key, known: KnownLaunchers, name: str) -> None:
        """Note that a pod's launcher has not answered, and ask another one, which shows whether
        only that pod is silent.
        """
        if known.heard_nothing(self._clock()):
            self._on_news(key)
        time = asyncio.get_running_loop().time()
        if time < known.next_witness_at:
            return
        known.next_witness_at = time + _FIRST_PAUSE_SECONDS
        pods = self._listeners(key)
        if others := [pod for pod in pods if pod not in (name, *known.unreached_since)]:
            self._begin(self._call(key, known, pods[random.choice(others)]))

    def _call_waiting(self, key: Key) -> None:
        """Call all launchers of a group that does not run yet: it shows those that wait for a start
        that the operator runs.
        """
        known, entry = self._known.get(key), self._jobs.get(key)
        job = pollable(entry.outline) if entry else None
        if known and job and world_of(job).generation and not job.status.is_true("Running"):
            for pod in self._listeners(key).values():
                self._begin(self._call_in_turn(key, known, pod))

    async def _call_in_turn(self, key: Key, known: KnownLaunchers, pod: PodState) -> None:
        async with self._slots.of(key):
            await self._call(key, known, pod)

    async def _call(self, key: Key, known: KnownLaunchers, pod: PodState) -> None:
        """Ask a launcher for its status, only to learn whether it answers."""
        token = self._access.token_of(known.uid, pod.token_key)
        with contextlib.suppress(OutOfFilesError):
            answer = await self._trainers.poll_world(
                pod.address, after=0, wait_seconds=0, lead_seconds=LEAD_SECONDS, token=token
            )
            if not isinstance(answer, str):
                self._heard(key, known)

    def _listeners(self, key: Key) -> dict[str, PodState]:
        """Return the pods of a job with a launcher that may listen, by name."""
        entry = self._jobs.get(key)
        job = pollable(entry.outline) if entry else None
        if job is None:
            return {}
        pods = (with_own_address(job, pod) for pod in self._cluster.pods_of(key))
        return {
            pod.key.name: pod
            for pod in pods
            if pod.owner_uid == job.uid and may_listen(job, pod) and not pod.deleting
        }


def _key_of(assignment: Assignment) -> tuple[str, int, bool]:
    return assignment.pod, assignment.group.generation, assignment.group.start
