"""Talks to the launchers in pods: sends them changes of their job's group, and long-polls them for
process failures in running pods.

All of it happens in the background: a launcher that does not answer delays no reconcile.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from ddp_protocol.message import InvalidMessageError
from ddp_protocol.world import LEAD_SECONDS, LauncherStatus, WorldAnswer

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.open_files import own_share
from ddp_operator.engine.tokens.access import Access
from ddp_operator.engine.trainers.known_launchers import KnownLaunchers
from ddp_operator.engine.trainers.launcher_pods import (
    leader,
    may_listen,
    pollable,
    seconds_to_lead,
    speakers,
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
_SILENCE: Final = timedelta(seconds=15)
"""How long all launchers of a job must be silent before the operator suspects its own network. It
is known before a single pod counts as lost."""
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
        # The status of another pod does not count: it may have another image, or be of another
        # attempt.
        status = known.status if known.leader in speakers(job) else None
        present = world_of(job).generation
        refused = known.refused.values()
        return LauncherStates(
            told=known.told,
            unreached_since=known.unreached_since,
            silent_since=known.silent_since if known.is_silent else None,
            failures=known.status.failures if known.status else (),
            scope=status.scope if status else "",
            leader=status,
            ahead=max((knows for told, knows in refused if told == present), default=0),
        )

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
        known.lead_seconds = seconds_to_lead(job)
        if known.spec_hash != job.spec_hash:
            known.spec_hash, known.has_answered = job.spec_hash, False
        known.has_answered |= bool(job.status.bookkeeping.launcher)  # to an earlier operator
        known.forget_gone(pods)
        speaker = leader(job, pods)
        name, address = (speaker.key.name, speaker.address) if speaker else ("", "")
        if (name, address) != (known.leader, known.address):
            known.stop_polling()
            known.leader, known.address, known.status, known.silent = name, address, None, 0
            if not known.is_silent:
                known.silent_since = None  # its launcher may not listen yet
            if speaker is not None:
                known.token_key = speaker.token_key
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
        answer, generation = said or WorldAnswer(0), assignment.group.generation
        refused = (generation, answer.generation)
        if answer.led and known.refused.get(assignment.pod) != refused:
            known.refused[assignment.pod] = refused
            self._on_news(key)
        if answer.generation < generation or answer.led or not answer.ended:
            # Keep the earlier time, but never a future one: clocks are set back.
            since = known.unreached_since.get(assignment.pod, sent_at)
            known.unreached_since[assignment.pod] = min(since, sent_at)
            return  # the plan retries
        known.unreached_since.pop(assignment.pod, None)
        known.refused.pop(assignment.pod, None)
        told = (generation, assignment.group.start)
        known.told[assignment.pod] = max(told, known.told.get(assignment.pod, told))
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
        known.has_answered, known.silent_since = True, None
        if known.is_silent:
            known.is_silent = False
            # The others have had no way to answer, so their time begins now.
            known.unreached_since = dict.fromkeys(known.unreached_since, self._clock())
            self._on_news(key)

    def _heard_nothing(self, key: Key, known: KnownLaunchers, name: str) -> None:
        """Note that a pod's launcher has not answered, and ask another one, which shows whether
        only that pod is silent.
        """
        now = self._clock()
        since = known.silent_since = min(known.silent_since or now, now)
        if now - since >= _SILENCE and not known.is_silent:
            known.is_silent = True
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
