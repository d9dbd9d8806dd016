"""Talks with the launchers in pods: tells them of changes of their job's group, and waits for what
they have to tell, which is that processes have ended in a pod that has not.

All of it goes by in the background: a launcher that does not answer holds no reconcile up.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.jobs import JobCache
from ddp_operator.job.membership.launchers import (
    NOTHING,
    Heard,
    InvalidAnswerError,
    LauncherStatus,
    Telling,
    parse,
)
from ddp_operator.job.membership.order import follows_topology
from ddp_operator.job.pods.access import Access
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, Key, Trainers

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Launchers told at the same time."""
_ROUND_SECONDS: Final = 0.5
"""How often to look which jobs have launchers to listen to."""
_WAIT_SECONDS: Final = 20
"""How long a launcher may wait for something to tell: less than what middle boxes take for dead."""
_AGAIN_SECONDS: Final = 2.0
"""Until a launcher is asked again that has not answered."""


@dataclass(slots=True)
class _Known:
    """What is known of the launchers of a job, and of the pods that it is of."""

    uid: str
    answers: bool = False
    told: dict[str, tuple[int, bool]] = field(default_factory=dict)
    unreached_since: dict[str, datetime] = field(default_factory=dict)
    status: LauncherStatus | None = None
    leader: str = ""
    """Whose launcher has said so: that of pod 0, by its name."""
    under_way: set[tuple[str, int, bool]] = field(default_factory=set)


class Launchers:
    """What the launchers of all jobs say; `run` listens.

    `on_news` is called for a job whose launchers have said, or taken note of, something.
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
        self._known: dict[Key, _Known] = {}
        self._listening: dict[Key, asyncio.Task[None]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def of(self, job: DDPJob) -> Heard:
        """What is known of a job's launchers."""
        known = self._known.get(job.key)
        if known is None or known.uid != job.uid:  # an earlier job of that name
            return NOTHING
        return Heard(
            answers=known.answers,
            told=known.told,
            unreached_since=known.unreached_since,
            failures=known.status.failures if known.status else (),
            scope=known.status.scope if known.status else "",
        )

    def tell(self, job: DDPJob, tellings: Iterable[Telling]) -> None:
        """Begin to tell them, unless that is under way."""
        known = self._of(job)
        for telling in tellings:
            which = (telling.pod, telling.generation, telling.start)
            if which in known.under_way:
                continue
            known.under_way.add(which)
            task = asyncio.create_task(self._tell(job.key, known, telling))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def run(self) -> None:
        """Listen until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(_ROUND_SECONDS)
        finally:
            for task in (*self._listening.values(), *self._telling):
                task.cancel()

    def _look(self) -> None:
        wanted = {key: job for key, e in self._jobs.entries.items() if (job := _listened_to(e.job))}
        for key in self._known.keys() - wanted.keys():
            del self._known[key]
        for key in self._listening.keys() - wanted.keys():
            self._listening.pop(key).cancel()
        for key, job in wanted.items():
            self._of(job)
            task = self._listening.get(key)
            if task is None or task.done():
                self._listening[key] = asyncio.create_task(self._listen(key, job.uid))

    def _of(self, job: DDPJob) -> _Known:
        known = self._known.get(job.key)
        if known is None or known.uid != job.uid:
            known = self._known[job.key] = _Known(job.uid)
        return known

    async def _tell(self, key: Key, known: _Known, telling: Telling) -> None:
        token = self._access.token_of(known.uid)
        try:
            async with self._slots:
                said = await self._trainers.tell_world(
                    telling.address, telling.document, token=token
                )
        finally:
            known.under_way.discard((telling.pod, telling.generation, telling.start))
        knows, ended = said or (0, False)
        if knows < telling.generation or not ended:
            known.unreached_since.setdefault(telling.pod, self._clock())
            return  # the plan looks again
        known.unreached_since.pop(telling.pod, None)
        told = (telling.generation, telling.start)
        known.told[telling.pod] = max(told, known.told.get(telling.pod, told))
        self._on_news(key)

    async def _listen(self, key: Key, uid: str) -> None:
        """To the launcher of pod 0, to which the others' tell what they have to say."""
        while (entry := self._jobs.get(key)) is not None and entry.uid == uid:
            job = _listened_to(entry.job)
            if job is None:
                return
            known = self._of(job)
            pods = self._cluster.pods_of(key)
            names = {pod.key.name for pod in pods}
            for gone in known.told.keys() - names:
                del known.told[gone]
            for gone in known.unreached_since.keys() - names:
                del known.unreached_since[gone]
            leader = observe(job, pods).current.get(0)
            if leader is None or not (leader.address and leader.started) or leader.exit:
                known.status = None
                await asyncio.sleep(_ROUND_SECONDS)
            elif not await self._hear(key, known, leader):
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _hear(self, key: Key, known: _Known, leader: PodState) -> bool:
        """Whether it has answered."""
        if known.leader != leader.key.name:
            known.leader, known.status = leader.key.name, None
        answer = await self._trainers.hear_world(
            leader.address,
            after=known.status.number if known.status else 0,
            wait_seconds=_WAIT_SECONDS,
            token=self._access.token_of(known.uid),
        )
        try:
            said = answer if isinstance(answer, str) else parse(answer)
        except InvalidAnswerError as error:
            said = str(error)
        if isinstance(said, str):
            logger.debug("%s: the launcher of %s says nothing: %s", key, leader.key.name, said)
            return False
        is_news = said != known.status
        known.answers, known.status = True, said
        if is_news:
            self._on_news(key)
        return True


def _listened_to(job: object) -> DDPJob | None:
    """A job whose launchers may have something to say; None for any other."""
    if not isinstance(job, DDPJob):
        return None
    asked = job.spec.restart.scope in ("Auto", "InPlace") or follows_topology(job)
    if not asked and job.status.world is None:
        return None  # of another scope now, its pods may still know generations
    return None if job.spec.suspend or job.deleting or job.status.finished else job
