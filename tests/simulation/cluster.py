"""The way from an operator to the API server, on which everything can be lost."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ddp_operator.job.pods.state import PodState
from ddp_operator.kube.view.cache import ObjectCache
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    Event,
    Key,
    Manifest,
    Nodes,
    NotFoundError,
)

from tests.manners import faults, without_testimony
from tests.simulation.server import ApiServer

T = TypeVar("T")

LATENCY_SECONDS = 0.01
"""One way of a request."""


@dataclass(frozen=True)
class Fault:
    """What happens to one write: it takes long, and then, maybe, fails, although it was done."""

    error: ClusterError | None = None
    done: bool = False
    seconds: float = LATENCY_SECONDS


@dataclass
class Weather:
    """Faults that wait for the next writes, and the write at which the operator dies."""

    faults: deque[Fault] = field(default_factory=deque)
    writes_until_crash: int | None = None
    crash_after_effect: bool = False

    def clear(self) -> None:
        """Let everything go well from now on."""
        self.faults.clear()
        self.writes_until_crash = None

    def next_fault(self) -> Fault:
        return self.faults.popleft() if self.faults else _NONE

    def next_is_last(self) -> bool:
        """Whether the operator dies of the write that it is about to make."""
        if self.writes_until_crash is None:
            return False
        self.writes_until_crash -= 1
        return self.writes_until_crash < 0


_NONE = Fault()


class SimulatedCluster:
    """Implements `ports.Cluster` as `KubeCluster` does, on a simulated server."""

    def __init__(
        self,
        server: ApiServer,
        weather: Weather,
        *,
        cache: ObjectCache[PodState],
        on_change: Callable[[Key], None],
        crash: Callable[[], None],
    ) -> None:
        self._server = server
        self._weather = weather
        self._cache = cache
        self._on_change = on_change
        self._crash = crash
        self.plans = 0
        self.writes = 0

    def pods_of(self, job: Key) -> list[PodState]:
        self.plans += 1
        return self._cache.members(job)

    def nodes(self) -> Nodes:
        return Nodes(self._server.nodes.values())

    async def create_pod(self, manifest: Manifest) -> None:
        def create() -> Manifest:
            try:
                return self._server.create_pod(manifest)
            except AlreadyExistsError:
                existing = self._server.found_pod(_key(manifest))
                _require_same_controller(existing, manifest)
                return existing

        self._notify(self._cache.offer(await self._write(create)))

    async def create_service(self, manifest: Manifest) -> None:
        def create() -> None:
            try:
                self._server.create_service(manifest)
            except AlreadyExistsError:
                assert self._server.service is not None
                _require_same_controller(self._server.service, manifest)

        await self._write(create)

    async def apply(self, manifest: Manifest) -> None:
        await self._write(lambda: self._server.apply(manifest))

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        del policy
        await self._write(lambda: self._server.delete_network_policy(owner_uid))

    def uid_of(self, pod: Key) -> str | None:
        known = self._cache.get(pod)
        return known.uid if known else None

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        await self._write_to_pod(
            pod, uid, lambda: self._server.delete_pod(pod, grace_seconds=grace_seconds)
        )

    async def patch_pod_labels(
        self, pod: Key, labels: Mapping[str, str | None], *, uid: str | None = None
    ) -> None:
        await self._write_to_pod(pod, uid, lambda: self._server.patch_pod_labels(pod, labels))

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        del job
        return await self._write(
            lambda: self._server.patch_status(status, resource_version=resource_version)
        )

    async def delete_job(self, job: Key, *, uid: str) -> None:
        del job
        try:
            await self._write(lambda: self._server.delete_job_of(uid))
        except (NotFoundError, ConflictError):
            return

    async def log_end(self, pod: Key, container: str) -> bytes:
        """No job of a history has its progress read from there."""
        raise AssertionError(f"the log of {pod}, {container} was read")

    async def emit_event(self, job: Manifest, event: Event) -> None:
        del job
        assert event.reason
        assert not list(faults(without_testimony(event.message))), event.message

    async def _write_to_pod(
        self, key: Key, uid: str | None, effect: Callable[[], Manifest]
    ) -> None:
        uid = uid or self.uid_of(key)

        def effect_on_that_one() -> Manifest:
            if uid not in (None, self._server.found_pod(key)["metadata"]["uid"]):
                raise NotFoundError("another one bears the name", status=404)
            return effect()

        try:
            answer = await self._write(effect_on_that_one)
        except NotFoundError:
            if uid is not None:
                self._notify(self._cache.forget(key, uid=uid))
        else:
            self._notify(self._cache.offer(answer))

    async def _write(self, effect: Callable[[], T]) -> T:
        """Make a request; its effect comes between the way there and the way back."""
        self.writes += 1
        fault, last = self._weather.next_fault(), self._weather.next_is_last()
        await asyncio.sleep(fault.seconds)
        if last and not self._weather.crash_after_effect:
            await self._die()
        if fault.error is not None and not fault.done:
            raise fault.error
        result = effect()
        if last:
            await self._die()
        await asyncio.sleep(LATENCY_SECONDS)
        if fault.error is not None:
            raise fault.error
        return result

    async def _die(self) -> None:
        self._weather.writes_until_crash = None
        self._crash()
        await asyncio.get_running_loop().create_future()

    def _notify(self, groups: set[Key]) -> None:
        for group in groups:
            self._on_change(group)


def _key(manifest: Manifest) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _require_same_controller(existing: Manifest, wanted: Manifest) -> None:
    theirs = existing["metadata"].get("ownerReferences") or [{"uid": ""}]
    if theirs[0]["uid"] != wanted["metadata"]["ownerReferences"][0]["uid"]:
        raise AlreadyExistsError("exists already and belongs to another", status=409)
