"""Writes the priority boosts by which Kueue preempts the job that loses least."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.preemption import boosts_of
from ddp_operator.ports import (
    Cluster,
    ClusterError,
    ForbiddenError,
    Key,
    NotFoundError,
    NotLeaderError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_ROUND_SECONDS: Final = 30.0
"""How often boosts are compared. Most stay the same for minutes."""
_LEAST_SECONDS: Final = 1.0
"""Shortest time between two rounds, where jobs stop running one after the other."""
_ACTIVE: Final = ("Pending", "Starting", "Running", "Restarting")
"""Phases in which Kueue may compare a job's priority."""

_RIGHTS: Final = "manifests/components/priority-boost/rbac.yaml"


class PriorityBoosts:
    """Keeps the boosts of running jobs' Workloads from 0 to `most`; `run` keeps writing them.

    A refused write is no failure of the job: the Workload keeps its boost, and the next round tries
    again.
    """

    def __init__(
        self,
        cluster: Cluster[PodState],
        jobs: JobCache,
        *,
        most: int,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._most = most
        self._clock = clock
        self._written: dict[Key, int] = {}
        """By Workload. Unknown after a restart of the operator, so all are written once."""
        self._raised: set[Key] = set()
        """Jobs with a boost."""
        self._has_dropped = asyncio.Event()
        self._refused: set[str] = set()
        """Namespaces in which the last write was refused."""

    def reconciled(self, key: Key) -> None:
        """Write soon if a job has stopped running, so that it does not queue with a boost."""
        entry = self._jobs.get(key)
        job = entry.outline if entry else None
        if key in self._raised and isinstance(job, DDPJob) and job.status.phase != "Running":
            self._has_dropped.set()

    async def run(self) -> None:
        """Write boosts until cancelled."""
        while True:
            self._has_dropped.clear()
            await self.write()
            await asyncio.sleep(_LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_dropped.wait(), _ROUND_SECONDS)

    async def write(self) -> None:
        """Write the boosts that have changed, in one round."""
        found = list(self._wanted())
        wanted = {workload: boost for _, workload, boost in found}
        self._raised = {key for key, _, boost in found if boost}
        self._written = {key: self._written[key] for key in self._written.keys() & wanted.keys()}
        refused: set[str] = set()
        for workload, boost in wanted.items():
            if self._written.get(workload) == boost or workload.namespace in refused:
                continue
            try:
                await self._cluster.set_priority_boost(workload, boost)
            except NotFoundError:  # not there yet, or no longer
                continue
            except ForbiddenError as error:
                refused.add(workload.namespace)
                self._report(workload.namespace, error)
            except (NotLeaderError, UnavailableError) as error:
                logger.debug("no priority boosts are written: %s", error.message)
                return
            except ClusterError as error:
                logger.warning("%s: cannot write the priority boost: %s", workload, error.message)
            else:
                self._written[workload] = boost
                self._refused.discard(workload.namespace)

    def _wanted(self) -> Iterator[tuple[Key, Key, int]]:
        """Return the jobs that run or will, with their Workloads and boosts."""
        now = self._clock()
        for key, entry in self._jobs.entries.items():
            job = entry.outline
            if not isinstance(job, DDPJob) or job.spec.managed_elsewhere:
                continue
            if job.spec.kueue_queue and job.status.phase in _ACTIVE:
                # A job may name another Workload; pods enter only groups of the job.
                pods = self._cluster.pods_of(key)
                own = {pod.queue.group for pod in pods if pod.queue and pod.owner_uid == job.uid}
                for name, boost in boosts_of(job, now, most=self._most).items():
                    if name in own:
                        yield key, Key(key.namespace, name), boost

    def _report(self, namespace: str, error: ForbiddenError) -> None:
        """Log a refusal once."""
        level = logging.DEBUG if namespace in self._refused else logging.WARNING
        self._refused.add(namespace)
        logger.log(
            level,
            "Kueue preempts jobs in %s without regard to their checkpoints: %s; grant the rights "
            "in %s, or remove --priority-boost",
            namespace,
            error.message,
            _RIGHTS,
        )
