"""One life of an operator process: it begins with what the cluster stores, and ends any time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DECISIVE, DDPJobStatus
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import Entry
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.status_patch import as_stored
from ddp_operator.engine.tokens.access import Access
from ddp_operator.engine.trainers.trainers import Trainers
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube.view.cache import ObjectCache
from ddp_operator.ports import Key, Manifest

from tests.simulation.clock import Clock, VirtualLoop
from tests.simulation.world.cluster import RequestFaults, SimulatedCluster
from tests.simulation.world.server import JOB, ApiServer
from tests.simulation.world.watch import Watch

_PRUNE_SECONDS = 300.0
"""As `replica` does: how often the names of jobs are compared."""

_PLANS_TO_A_CHECK = 8
"""One plan in so many is made four times: it depends only on what the operator sees, and of the
status only on the fields that an installed CRD must have.
"""

_SETTINGS = PodSettings(access=Access(keys={"1": b"the same in every life"}, has_secrets=True))


class OperatorProcess:
    """The engine, its caches and its watches, wired as `replica` wires them."""

    def __init__(
        self, server: ApiServer, clock: Clock, requests: RequestFaults, trainers: Trainers
    ) -> None:
        self._server = server
        # What of a loop is not there concerns I/O, threads and signals.
        self.loop = VirtualLoop(clock)  # type: ignore[abstract]
        self._cache: ObjectCache[PodState] = ObjectCache(project=project, group=job_of)
        self.cluster = SimulatedCluster(
            server,
            requests,
            cache=self._cache,
            on_change=lambda key: self.engine.pods_changed(key),  # noqa: PLW0108 - it comes later
            crash=self.loop.halt,
        )
        self.engine = Engine(
            self.cluster,
            settings=_SETTINGS,
            clock=clock.operators_now,
            workers=1,
            trainers=trainers,
        )
        self.plans = 0
        self._plan = self.engine._reconciler._plan
        self.engine._reconciler._plan = self._checked_plan  # type: ignore[method-assign]
        self.pods = Watch(self.loop, deliver=self._pod_event, relist=self._list_pods)
        self.jobs = Watch(self.loop, deliver=self._job_event, relist=self._list_jobs)
        server.on_pod, server.on_job = self.pods.push, self.jobs.push
        server.on_nodes = lambda: self.loop.call_soon(self.engine.nodes_changed)
        self.loop.call_soon(self._start)

    def _checked_plan(self, key: Key, entry: Entry, pods: Sequence[PodState]) -> Plan:
        self.plans += 1
        planned = self._plan(key, entry, pods)
        if self.plans % _PLANS_TO_A_CHECK == 0:
            assert self._plan(key, entry, pods) == planned, "the same pods gave another plan"
            status = self._plan(key, entry, pods[::-1]).status
            assert status == planned.status, "pods in another order gave another status"
            if isinstance(entry.job, DDPJob):
                again = self._plan(key, with_part_of_status(entry, decisive), pods)
                assert decision(again) == decision(planned), "an older CRD gave another decision"
        return planned

    def kill(self) -> None:
        """End it without a word; what it had under way is broken off."""
        self._server.on_pod = self._server.on_job = lambda *_: None
        self._server.on_nodes = lambda: None
        self.loop.halt()
        self.loop.cancel_tasks()

    def heal(self) -> None:
        """Bring its watches up to date."""
        for bring in (self.pods.heal, self.jobs.heal, self._prune):
            self.loop.call_soon(bring)

    def ask_for_progress(self) -> None:
        """Ask the job's trainer now, as every running job's is asked every ten seconds."""
        self.loop.call_soon(self._ask)

    def _ask(self) -> None:
        reports = self.engine._reports
        assert reports is not None
        self.loop.create_task(reports._poll(JOB))

    def listen(self) -> None:
        """Ask the launcher of the job's first pod now, which otherwise answers when it has news."""
        self.loop.create_task(self._listen())

    async def _listen(self) -> None:
        launchers = self.engine._launchers
        known = launchers._current(JOB) if launchers else None
        if launchers and known and known.leader:
            await launchers._poll(JOB, known)

    def _start(self) -> None:
        self._list_pods()
        self._list_jobs()
        self.engine.start()
        # Polls by time would be nearly all of a history. Actions ask.
        for talk in self.engine._talks:
            talk.cancel()
        self.loop.call_later(_PRUNE_SECONDS, self._prune_again)

    def _pod_event(self, kind: str, manifest: Manifest) -> None:
        deleted = kind == "DELETED"
        self._notify(self._cache.deleted(manifest) if deleted else self._cache.changed(manifest))

    def _job_event(self, kind: str, manifest: Manifest) -> None:
        if kind == "DELETED":
            self.engine.job_gone(JOB, uid=manifest["metadata"]["uid"])
        else:
            self._read(manifest)

    def _list_pods(self) -> None:
        pods = [pod for pod in self._server.pods.values() if job_of(pod)]
        entries = [self._cache.entry_of(pod) for pod in pods]
        self._notify(self._cache.replace(entries, version=self._server.version))

    def _list_jobs(self) -> None:
        if self._server.job is not None:
            self._read(self._server.job)

    def _read(self, job: Manifest) -> None:
        metadata = job["metadata"]
        self._server.delivered.add((metadata["uid"], metadata["generation"]))
        self.engine.job_changed(job)

    def _prune_again(self) -> None:
        self._prune()
        self.loop.call_later(_PRUNE_SECONDS, self._prune_again)

    def _prune(self) -> None:
        if self._server.job is None:
            self.engine.job_gone(JOB)

    def _notify(self, groups: set[Key]) -> None:
        for group in groups:
            self.engine.pods_changed(group)


def decisive(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a stored status that decisions read."""
    part: dict[str, Any] = {}
    for name in DECISIVE:
        outer, _, inner = name.partition(".")
        if not inner and outer in stored:
            part[outer] = stored[outer]
        elif inner and inner in stored.get(outer, ()):
            part.setdefault(outer, {})[inner] = stored[outer][inner]
    return part


def with_part_of_status(entry: Entry, part: Callable[[Mapping[str, Any]], Manifest]) -> Entry:
    """Return a valid job with the part of its stored status that an older CRD keeps."""
    job = entry.outline
    assert isinstance(job, DDPJob)
    status = DDPJobStatus.model_validate(part(as_stored(job.status)))
    return replace(entry, outline=replace(job, status=status))


def decision(planned: Plan, part: Callable[[Mapping[str, Any]], Manifest] = decisive) -> Plan:
    """Return a plan without what is for people: Events, messages and the rest of the status."""
    status = DDPJobStatus.model_validate(part(as_stored(planned.status)))
    status = status.updated(
        conditions=tuple(one.updated(message="") for one in status.conditions),
        failures=tuple(one.updated(message="") for one in status.failures),
    ).noting(stopwatch=None)
    return replace(planned, status=status, seen=None, events=())
