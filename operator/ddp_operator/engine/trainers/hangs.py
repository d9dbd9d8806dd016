"""Asks the launchers of hanging jobs where their ranks are, and keeps the answer for the plan.

It happens in the background, so a launcher that does not answer delays no reconcile. One job is
asked at a time, and its answers are limited, since many jobs may hang after one fault of a network.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.hang import evidence
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.membership.world import world_of
from ddp_operator.ports import Key

logger = logging.getLogger(__name__)

_SECONDS: Final = 45.0
"""How long a job may wait for its answer, including its turn; a launcher takes ten seconds."""
_AT_ONCE: Final = 16
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Limit of all answers of a job: 2 KB for each of 2,000 ranks."""


class _Moment(NamedTuple):
    """Tells one hang of a job from the next."""

    uid: str
    attempt: int
    generation: int
    step: int | None

    @classmethod
    def of(cls, job: DDPJob) -> "_Moment":
        progress = job.status.progress
        step = progress.step if progress else None
        return cls(job.uid, job.status.attempt, world_of(job).generation, step)


class Hangs:
    """What is known about hanging jobs. `on_news` is called for a job when it is known."""

    def __init__(
        self, jobs: JobCache, trainers: Trainers, *, on_news: Callable[[Key], None]
    ) -> None:
        self._jobs = jobs
        self._trainers = trainers
        self._on_news = on_news
        self._known: dict[Key, tuple[_Moment, Hang]] = {}
        self._asking: dict[Key, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        # Its work cannot be cancelled, so it must not take the threads that others need.
        self._thread = ThreadPoolExecutor(1, "hangs")

    def of(self, job: DDPJob) -> Hang | None:
        """Return what the launchers showed of the present hang; None before they were asked."""
        moment, hang = self._known.get(job.key, (None, None))
        return hang if moment == _Moment.of(job) else None

    def ask(self, job: DDPJob, launchers: Sequence[tuple[int, str]], *, token: str) -> None:
        """Ask launchers, each with its node rank and address, unless they are being asked."""
        self._known = {key: known for key, known in self._known.items() if self._jobs.get(key)}
        if job.key not in self._asking:
            self._asking[job.key] = asyncio.create_task(self._ask(job, launchers, token))

    async def stop(self) -> None:
        """Stop asking."""
        tasks = [*self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, job: DDPJob, launchers: Sequence[tuple[int, str]], token: str) -> None:
        found = NOTHING_KNOWN
        try:
            async with asyncio.timeout(_SECONDS), self._turn:
                found = await self._explain(job, launchers, token)
        except evidence.TooMuchError as error:
            logger.warning("%s hangs; its launchers' answers are not read: %s", job.key, error)
        except TimeoutError:
            logger.warning("%s hangs; its launchers took too long to show its ranks", job.key)
        except Exception:
            # The job must restart all the same.
            logger.exception("%s: asking for the ranks of a hang failed", job.key)
        finally:
            del self._asking[job.key]
        if found.sentence:
            logger.info("%s hangs: %s", job.key, found.sentence)
        self._known[job.key] = _Moment.of(job), found
        self._on_news(job.key)

    async def _explain(self, job: DDPJob, launchers: Sequence[tuple[int, str]], token: str) -> Hang:
        slots, left = asyncio.Semaphore(_AT_ONCE), _MOST_BYTES

        async def answer(address: str) -> bytes | str:
            nonlocal left
            async with slots:
                if left <= 0:
                    return ""
                said = await self._trainers.traces(address, token=token)
            left -= len(said)
            return said

        said = await asyncio.gather(*(answer(address) for _, address in launchers))
        if all(isinstance(each, str) for each in said):
            return NOTHING_KNOWN
        if left <= 0:
            raise evidence.TooMuchError(f"they have more than {_MOST_BYTES >> 20} MB")
        answers = [
            (ranks.ranks(job.spec, node_rank), text)
            for (node_rank, _), text in zip(launchers, said, strict=True)
        ]
        # Tenths of a second for a thousand ranks. Other tasks continue meanwhile.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, evidence.explain_answers, answers)
