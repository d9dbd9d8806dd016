"""Runs the reconciler: a queue, its workers, and the handling of failed reconciles."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.background.compute_domains import ComputeDomains
from ddp_operator.engine.background.priority_boosts import PriorityBoosts
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.metrics import JOBS, Metrics, choose, text_of
from ddp_operator.engine.metrics.totals import count_jobs
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.queue import QueueClosedError, WorkQueue
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.engine.trainers.hangs import Hangs
from ddp_operator.engine.trainers.launchers import Launchers
from ddp_operator.engine.trainers.reports import PROGRESS_SECONDS, ProgressReports
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    Cluster,
    ClusterError,
    ConflictError,
    Key,
    Manifest,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_WORKERS: Final = 32
"""Jobs reconciled at the same time. They wait for the API server nearly all the time."""

_REST_SECONDS_PER_POD: Final = 100e-6
_LARGE: Final = 5000
"""A job with this many pods rests twice as long per pod."""
_FIRST_REST_SECONDS: Final = 0.05
_REST_SECONDS: Final = 0.25
_MOST_REST_SECONDS: Final = 1.0
"""How long changes of pods are collected after a reconcile before the next one. After a pause, the
first change reconciles at once, the next ones after 0.05 s, then more and more together, up to
0.25 s. So a job is reconciled at most four times a second while its pods start one by one. A
reconcile costs about 6 microseconds for each pod, so the largest jobs rest longer."""

_NODES_REST_SECONDS: Final = 1.0
"""How long changes of nodes are collected before the check for leaving nodes."""

_STOP_SECONDS: Final = 10.0
"""How long running reconciles may take when the operator stops; a pod has 30 s to end."""


def utc_now() -> datetime:
    """Return the time, in production."""
    return datetime.now(UTC)


class Engine:
    """Keeps all jobs reconciled, from `start` to `stop`.

    The watchers report jobs (`job_changed`, `job_gone`), pods (`pods_changed`) and nodes
    (`nodes_changed`). With `trainers`, the engine polls running jobs for progress and talks to
    their pods' launchers; `stop` closes `trainers`. Its metrics name at most `metrics_jobs` jobs.
    `priority_boost` is the largest boost of a Workload; 0: it writes none.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        *,
        settings: PodSettings,
        clock: Callable[[], datetime] = utc_now,
        workers: int = _WORKERS,
        trainers: Trainers | None = None,
        progress_seconds: float = PROGRESS_SECONDS,
        metrics_jobs: int = JOBS,
        priority_boost: int = 0,
    ) -> None:
        self.jobs = JobCache()
        self.metrics = Metrics()
        self._metrics_jobs = metrics_jobs
        self._cluster = cluster
        self._leaving_nodes: frozenset[tuple[str, bool, datetime | None]] = frozenset()
        self._nodes_due: asyncio.TimerHandle | None = None
        self._clock = clock
        self._trainers = trainers
        self._domains = ComputeDomains(cluster, self.jobs)
        self._boosts: PriorityBoosts | None = None
        if priority_boost:
            self._boosts = PriorityBoosts(cluster, self.jobs, most=priority_boost, clock=clock)
        self._reports: ProgressReports | None = None
        self._launchers: Launchers | None = None
        self._hangs: Hangs | None = None
        if trainers is not None:
            self._reports = ProgressReports(
                cluster,
                self.jobs,
                trainers,
                interval_seconds=progress_seconds,
                clock=clock,
                on_report=self.enqueue,
            )
            self._launchers = Launchers(
                cluster,
                self.jobs,
                trainers,
                access=settings.access,
                clock=clock,
                on_news=self._launcher_reported,
            )
            self._hangs = Hangs(self.jobs, trainers, on_news=self.enqueue)
        self._reconciler = Reconciler(
            cluster,
            self.jobs,
            settings=settings,
            clock=clock,
            report_of=self._reports.of if self._reports else lambda _: None,
            launchers=self._launchers,
            hangs=self._hangs,
            trainers=trainers,
            progress_seconds=progress_seconds,
            metrics=self.metrics,
        )
        self._queue: WorkQueue[Key] = WorkQueue()
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []
        self._talks: list[asyncio.Task[None]] = []
        """Tasks that talk to trainers and launchers, or work beside the reconciles."""

    def job_changed(self, manifest: Manifest) -> None:
        """Store a changed job in the cache, and enqueue it if the change was new."""
        key = Key.of(manifest)
        try:
            is_news = self.jobs.put(manifest)
        except Exception:  # a bug; one job must never stop the others
            logger.exception("%s cannot be parsed and is ignored", key)
            return
        if is_news:
            self.enqueue(key)

    def job_gone(self, key: Key, *, uid: str | None = None) -> None:
        """Forget a deleted job. Its pods in a queue may still need something."""
        if self.jobs.remove(key, uid=uid):
            self.enqueue(key)

    def pods_changed(self, key: Key) -> None:
        """Enqueue a job after a change of its pods: at once, or later if it was just reconciled."""
        if self._tasks:
            rest = min(max(self._rest_seconds(key), _REST_SECONDS), _MOST_REST_SECONDS)
            self._queue.add_rested(key, first_seconds=_FIRST_REST_SECONDS, most_seconds=rest)

    def _launcher_reported(self, key: Key) -> None:
        """Enqueue a job after a report of a launcher. Processes wait for the result, so small jobs
        hardly rest. In large ones all launchers report at the same time.
        """
        if self._tasks:
            rest = min(self._rest_seconds(key), _REST_SECONDS)
            self._queue.add_rested(key, first_seconds=rest, most_seconds=rest)

    def nodes_changed(self) -> None:
        """Check soon for jobs with pods on leaving or silent nodes, and enqueue them."""
        if self._tasks and self._nodes_due is None:
            loop = asyncio.get_running_loop()
            self._nodes_due = loop.call_later(_NODES_REST_SECONDS, self._check_nodes)

    def _check_nodes(self) -> None:
        """Enqueue jobs that a node change concerns. Nodes change with each heartbeat, but hardly
        any change concerns a job.
        """
        self._nodes_due = None
        nodes = self._cluster.nodes()
        leaving = frozenset(
            (name, bool(node.leaving or node.unready), node.maintenance_at)
            for name, node in nodes.signalled.items()
            if node.leaving or node.unready or node.maintenance_at
        )
        # Also nodes that stay after all.
        concerned = {name for name, *_ in leaving ^ self._leaving_nodes}
        self._leaving_nodes = leaving
        if concerned:
            for key in self.jobs.entries:
                if any(pod.node in concerned for pod in self._cluster.pods_of(key)):
                    self.enqueue(key)

    def _rest_seconds(self, key: Key) -> float:
        """Return how long a job rests after a reconcile, in proportion to its cost."""
        entry = self.jobs.get(key)
        job = entry.outline if entry else None
        replicas = job.spec.replicas if isinstance(job, DDPJob) else 0
        return replicas * _REST_SECONDS_PER_POD * (1 + replicas / _LARGE)

    def enqueue(self, key: Key) -> None:
        """Reconcile a job now."""
        if self._tasks:  # `start` enqueues all jobs
            self._queue.add(key)

    def metrics_text(self, *, leading: bool) -> str:
        """Return all metrics as Prometheus' text. Only the acting replica includes those of each
        job, so that each appears once.
        """
        entries, now = self.jobs.entries.values(), self._clock()
        limit = self._metrics_jobs if leading else 0
        chosen = choose(entries, limit=limit, now=now)
        totals = count_jobs(entries, now=now)
        queued = len(self._queue)
        own = self.metrics.text(totals, queued=queued, leading=leading, left_out=chosen.left_out)
        return own + text_of(chosen.jobs, now=now)

    def start(self) -> None:
        """Start the workers and enqueue every known job."""
        self._tasks = [
            asyncio.create_task(self._work(), name=f"worker-{i}") for i in range(self._workers)
        ]
        self._talks.append(asyncio.create_task(self._domains.run(), name="compute domains"))
        if self._reports is not None:
            self._talks.append(asyncio.create_task(self._reports.run(), name="progress reports"))
        if self._launchers is not None:
            self._talks.append(asyncio.create_task(self._launchers.run(), name="launchers"))
        if self._boosts is not None:
            self._talks.append(asyncio.create_task(self._boosts.run(), name="priority boosts"))
        for key in self.jobs.entries:
            self.enqueue(key)

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop in order: finish running reconciles, or cancel them if `at_once`. No reconcile
        starts.
        """
        self._queue.close()
        if self._nodes_due is not None:
            self._nodes_due.cancel()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        if self._hangs is not None:
            await self._hangs.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=0 if at_once else _STOP_SECONDS)
            if late and not at_once:
                logger.warning("stopping: %d reconciles did not end in time", len(late))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._tasks = []
        if self._trainers is not None:
            await self._trainers.close()

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueClosedError:
                return
            await self._work_on(key)

    async def _work_on(self, key: Key) -> None:
        began = self._clock()
        try:
            with self.metrics.reconciling():
                requeue_at = await self._reconciler.reconcile(key)
        except ConflictError:
            # The job has changed meanwhile. The watch will report it, or already has.
            self._queue.failed(key)
        except UnavailableError as error:
            seconds = self._queue.failed(key, retry_after_seconds=error.retry_after_seconds)
            logger.warning("%s: %s; retrying in %.1f s", key, error.message, seconds)
        except ClusterError as error:
            seconds = self._queue.failed(key)
            logger.warning("%s: %s; retrying in %.1f s", key, error.message, seconds)
        except Exception:
            # One job must never stop the others. It is retried with growing pauses.
            seconds = self._queue.failed(key)
            logger.exception("%s: reconcile failed; retrying in %.1f s", key, seconds)
        else:
            self._queue.done(key)
            if self._boosts is not None:
                self._boosts.reconciled(key)
            if requeue_at is not None:
                # The clock may have been set back since the plan was made.
                seconds = (requeue_at - max(began, self._clock())).total_seconds()
                self._queue.add_after(key, max(seconds, 0.05))
        finally:
            if self._reports is not None:
                self._reports.watch(key)
            if self._launchers is not None:
                self._launchers.watch(key)
