"""One process of the operator: it watches all the time, and acts while it is allowed to."""

import asyncio
import logging
import signal
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Final

import kopf

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.node_signals import Rules, read_node
from ddp_operator.api.schema.comparison import Difference
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.metrics import JOBS as JOBS_IN_METRICS
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.trainers.reports import PROGRESS_SECONDS
from ddp_operator.engine.trainers.requests import HttpTrainers
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.kube import (
    ALL_NODES,
    NODES,
    PODS,
    ApiClient,
    KubeCluster,
    Leadership,
    LeaseLostError,
    Reflector,
    list_pages,
    list_uids,
)
from ddp_operator.ports import ClusterError, Key, Node
from ddp_operator.process import handlers
from ddp_operator.process.handlers import JOBS

logger = logging.getLogger(__name__)

_SYNC_SECONDS: Final = 120.0
"""Deadline of a complete list of pods or nodes."""

_IDENTITY: Final[Any] = "ddp-operator"
"""kopf's name for this process; without peering nothing depends on it."""

_PRUNE_SECONDS: Final = 300.0
"""How often job names are compared: kopf does not report deletions that happened while its watch
was broken."""

_END_SECONDS: Final = 5.0
"""How long watches may take to end."""


class ReplicaError(Exception):
    """A part of the operator has ended unexpectedly."""


class Replica:
    """Watches jobs and pods, and acts on them: always, or while it holds `lease`.

    Without the lease, `client` refuses writes. `ready` is set while the watches run, also on a
    standby replica. Trainers of running jobs are polled for progress every `progress_seconds`, and
    it is written as often. `metrics` names at most `metrics_jobs` jobs. `priority_boost` is the
    largest boost of a running job's Workload; 0: none.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str | None,
        settings: PodSettings,
        lease: Leadership | None,
        ready: asyncio.Event,
        may_see_nodes: bool,
        node_rules: Rules,
        progress_seconds: float = PROGRESS_SECONDS,
        metrics_jobs: int = JOBS_IN_METRICS,
        priority_boost: int = 0,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._lease = lease
        self._ready = ready
        self._told_to_stop = asyncio.Event()
        self._pods = Reflector(
            client,
            PODS.path(namespace=namespace),
            label_selector=LABEL_JOB_NAME,
            project=project,
            group=job_of,
            on_change=lambda key: self._engine.pods_changed(key),  # noqa: PLW0108 - created later
        )
        self._node_rules = node_rules
        self._nodes = self._node_reflector() if may_see_nodes else None
        self._cluster = KubeCluster(
            client, job_resource=JOBS, pods=self._pods, nodes=self._nodes, namespace=namespace
        )
        self._engine = Engine(
            self._cluster,
            settings=settings,
            trainers=HttpTrainers(),
            progress_seconds=progress_seconds,
            metrics_jobs=metrics_jobs,
            priority_boost=priority_boost,
        )
        self._engine.metrics.api_errors = client.errors

    def note_crd(self, crd: Difference) -> None:
        """Show in the metrics how the installed CRD differs from this release's."""
        self._engine.metrics.lost_fields = crd.lacking
        self._engine.metrics.unknown_fields = crd.unknown

    def metrics(self) -> str:
        """Return all metrics as Prometheus' text."""
        acts = self._ready.is_set() and (self._lease is None or self._lease.held.is_set())
        return self._engine.metrics_text(leading=acts)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Any other end raises.

        Raises `LeaseLostError` if the replica led and lost the lease, `ClusterError` if it cannot
        watch the cluster.
        """
        self._listen_to_signals()
        stop = asyncio.create_task(self._told_to_stop.wait())
        parts: list[asyncio.Task[Any]] = [stop, _endless(self._pods.run(), "the pod reflector")]
        if self._nodes is not None:
            parts.append(_endless(self._nodes.run(), "the node reflector"))
        kopf_task: asyncio.Task[None] | None = None
        lost = False
        try:
            sync = asyncio.create_task(self._wait_synced())
            await _first_of([sync, *parts])
            if stop.done():
                sync.cancel()
                return
            # When kopf fails it cancels tasks that began after it, so all of these begin before.
            if self._lease is not None:
                parts.append(_endless(self._lease.run(), "the election"))
            parts.append(_endless(self._act(), "the engine"))
            kopf_task = await self._watch_jobs()
            await _first_of([*parts, kopf_task])
        except LeaseLostError:
            lost = True
            raise
        finally:
            self._ready.clear()
            # The lease is renewed until nothing writes any more, and then released at once: kopf
            # takes longer to end.
            await self._engine.stop(at_once=lost)
            await _end(parts)
            await self._cluster.close()
            if self._lease is not None and not lost:
                await self._lease.release()
            if kopf_task is not None:
                await _end([kopf_task])

    async def _wait_synced(self) -> None:
        """Wait until pods and nodes are listed. Without the nodes, a plan would decide as if the
        operator were not allowed to see them.
        """
        for reflector in (self._pods, self._nodes):
            if reflector is not None:
                await reflector.wait_synced(timeout_seconds=_SYNC_SECONDS)

    def _node_reflector(self) -> Reflector[Node]:
        return Reflector(
            self._client,
            NODES.path(),
            label_selector="",
            project=lambda manifest: read_node(manifest, self._node_rules),
            group=lambda _: ALL_NODES,
            on_change=lambda _: self._nodes_changed(),
        )

    def _nodes_changed(self) -> None:
        self._cluster.nodes_changed()
        self._engine.nodes_changed()

    def _listen_to_signals(self) -> None:
        def stop(number: signal.Signals) -> None:
            logger.info("%s: stopping", number.name)
            self._told_to_stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)

    async def _watch_jobs(self) -> "asyncio.Task[None]":
        """Let kopf watch the jobs. The task ends if kopf fails."""
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=handlers.registry_for(self._engine, self._client.credentials.connection),
            settings=handlers.settings(),
            standalone=True,
            # Without it kopf asks for the user's name, which an arbitrary user ID does not have.
            identity=_IDENTITY,
            clusterwide=self._namespace is None,
            namespaces=[self._namespace] if self._namespace else (),
            ready_flag=self._ready,
        )
        # kopf has taken over the signals. But it would end before the engine, so take them back.
        self._listen_to_signals()
        return asyncio.create_task(kopf.run_tasks(tasks, ignored=before))

    async def _act(self) -> None:
        """Start the engine once this replica leads."""
        if self._lease is not None:
            await self._lease.held.wait()
            # The watches may not have reported the previous leader's last writes. A pod that it
            # created and that is missing here would count as lost.
            await self._pods.refresh(timeout_seconds=_SYNC_SECONDS)
            await self._refresh_jobs()
        self._engine.start()
        for key in self._pods.groups():
            self._engine.enqueue(key)  # also those of jobs that are gone
        logger.info("serving %s", self._namespace or "all namespaces")
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            await self._prune()

    async def _refresh_jobs(self) -> None:
        """Read all jobs as they are now, and forget those that are gone."""
        known = self._engine.jobs.uids()
        listed: dict[Key, str] = {}
        path = JOBS.path(namespace=self._namespace)
        async for manifests, _ in list_pages(self._client, path):
            for manifest in manifests:
                listed[Key.of(manifest)] = manifest["metadata"]["uid"]
                self._engine.job_changed(manifest)
        self._engine.jobs.prune(known, existing=listed)

    async def _prune(self) -> None:
        """Forget jobs that no longer exist, however their deletion was missed."""
        known = self._engine.jobs.uids()
        try:
            existing = await list_uids(self._client, JOBS.path(namespace=self._namespace))
        except ClusterError as error:
            logger.warning("cannot list the jobs to find deleted ones: %s", error)
            return
        for key in self._engine.jobs.prune(known, existing=existing):
            logger.info("%s is gone, but its deletion was not reported", key)


def _endless(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    """Start work that must not end by itself."""

    async def run() -> None:
        await work
        raise ReplicaError(f"{name} has ended unexpectedly")

    return asyncio.create_task(run(), name=name)


async def _first_of(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Wait until a task has ended, and raise its error."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and let them end. Errors that ended them earlier have already been raised."""
    for task in tasks:
        task.cancel()
    _, late = await asyncio.wait(tasks, timeout=_END_SECONDS)
    if late:
        logger.warning("stopping: %d tasks did not end in time", len(late))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # marks it as seen
