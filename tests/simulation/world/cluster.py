"""The operator's requests to the API server, where everything can be lost."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ddp_operator.job.pods.state import PodState
from ddp_operator.kube.view.cache import ObjectCache
from ddp_operator.ports import (
    AlreadyExistsError,
    ConflictError,
    Event,
    ForbiddenError,
    InvalidError,
    Key,
    Manifest,
    Nodes,
    NotFoundError,
)

from tests.message_style import faults
from tests.simulation.checks.quotes import own_text
from tests.simulation.world.refusals import LATENCY_SECONDS, Refusal, Refusals
from tests.simulation.world.server import JOB, ApiServer

T = TypeVar("T")

_NONE = Refusal(None)


@dataclass
class RequestFaults:
    """Faults of an operator's requests, and the write at which it crashes."""

    refusals: Refusals = field(default_factory=Refusals)
    writes_until_crash: int | None = None
    crash_after_effect: bool = False
    messages: list[str] = field(default_factory=list)
    """Messages of Events; none is lost."""

    def clear(self) -> None:
        """Let everything go well from now on."""
        self.refusals.clear()
        self.writes_until_crash = None

    def next_is_last(self) -> bool:
        """Return whether the operator dies of the write that it is about to make."""
        if self.writes_until_crash is None:
            return False
        self.writes_until_crash -= 1
        return self.writes_until_crash < 0


class SimulatedCluster:
    """Implements `ports.Cluster` as `KubeCluster` does, on a simulated server."""

    def __init__(
        self,
        server: ApiServer,
        requests: RequestFaults,
        *,
        cache: ObjectCache[PodState],
        on_change: Callable[[Key], None],
        crash: Callable[[], None],
    ) -> None:
        self._server = server
        self._requests = requests
        self._cache = cache
        self._on_change = on_change
        self._crash = crash
        self.writes = 0

    def pods_of(self, job: Key) -> list[PodState]:
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

        name = manifest["metadata"]["name"]
        self._notify(self._cache.offer(await self._write("create_pod", create, name=name)))

    async def create_service(self, manifest: Manifest) -> None:
        def create() -> None:
            try:
                self._server.create_service(manifest)
            except AlreadyExistsError:
                assert self._server.service is not None
                _require_same_controller(self._server.service, manifest)

        await self._write("create_service", create)

    async def create_secret(self, manifest: Manifest) -> None:
        with contextlib.suppress(AlreadyExistsError):
            await self._write("create_secret", lambda: self._server.create_secret(manifest))

    async def apply(self, manifest: Manifest) -> None:
        await self._write(f"apply {manifest['kind']}", lambda: self._server.apply(manifest))

    async def read(self, named: Manifest) -> Manifest:
        raise AssertionError(named)

    async def find(self, like: Manifest, *, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """No job of a history has an NVLink domain."""
        del like, labels
        return ()

    async def update(self, changed: Manifest) -> Manifest:
        raise AssertionError(changed)

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        raise AssertionError(stored, status)

    async def delete(self, stored: Manifest) -> None:
        raise AssertionError(stored)

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        """No job of a history is in a queue of Kueue."""
        raise AssertionError(f"the boost of {workload} was set to {boost}")

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        del policy
        await self._write(
            "delete NetworkPolicy", lambda: self._server.delete_network_policy(owner_uid)
        )

    def uid_of(self, pod: Key) -> str | None:
        known = self._cache.get(pod)
        return known.uid if known else None

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        def delete() -> Manifest:
            return self._server.delete_pod(pod, grace_seconds=grace_seconds)

        await self._write_to_pod("delete_pod", pod, uid, delete)

    async def delete_pods(
        self,
        pods: Mapping[Key, str | None],
        *,
        labels: Mapping[str, Sequence[str]],
        grace_seconds: int | None,
    ) -> Sequence[Key]:
        def delete(most: int | None = None) -> list[Manifest]:
            return self._server.delete_pods(labels, grace_seconds=grace_seconds, most=most)

        try:
            listed = await self._write(
                "delete_pods", delete, broken=lambda: delete(most=len(pods) // 2)
            )
        except (ForbiddenError, InvalidError):
            return tuple(pods)
        selected = {pod["metadata"]["uid"] for pod in listed}
        assert selected <= set(pods.values()), "other pods of the namespace have these labels"
        return [pod for pod, uid in pods.items() if uid not in selected]

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        def patch() -> Manifest:
            return self._server.patch_pod_labels(pod, metadata["labels"])

        await self._write_to_pod("patch_pod", pod, uid, patch)

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        del job
        written = await self._write(
            "patch_status",
            lambda: self._server.patch_status(status, resource_version=resource_version),
        )
        # The response has the job's spec, too, which the watch may not have delivered yet.
        self._server.delivered.add((written["metadata"]["uid"], written["metadata"]["generation"]))
        return written

    async def delete_job(self, job: Key, *, uid: str) -> None:
        del job
        try:
            await self._write("delete_job", lambda: self._server.delete_job_of(uid))
        except (NotFoundError, ConflictError):
            return

    async def log_end(self, pod: Key, container: str) -> bytes:
        """No job of a history has its progress read from there."""
        raise AssertionError(f"the log of {pod}, {container} was read")

    async def emit_event(self, job: Manifest, event: Event) -> None:
        del job
        assert event.reason
        own = own_text(event.message)
        assert not (own and list(faults(own))), event.message
        self._requests.messages.append(event.message)

    async def _write_to_pod(
        self, request: str, key: Key, uid: str | None, effect: Callable[[], Manifest]
    ) -> None:
        uid = uid or self.uid_of(key)

        def effect_on_that_one() -> Manifest:
            if uid not in (None, self._server.found_pod(key)["metadata"]["uid"]):
                raise NotFoundError("another one bears the name", status=404)
            return effect()

        try:
            answer = await self._write(request, effect_on_that_one, name=key.name)
        except NotFoundError:
            if uid is not None:
                self._notify(self._cache.forget(key, uid=uid))
        else:
            self._notify(self._cache.offer(answer))

    async def _write(
        self,
        request: str,
        effect: Callable[[], T],
        *,
        name: str = JOB.name,
        broken: Callable[[], T] | None = None,
    ) -> T:
        """Make a request; its effect comes between the way there and the way back. Without an
        answer it may be only a part, `broken`.
        """
        self.writes += 1
        now = asyncio.get_running_loop().time()
        refusals, last = self._requests.refusals, self._requests.next_is_last()
        met = refusals.meet(request, now) or _NONE
        await asyncio.sleep(met.seconds)
        if last and not self._requests.crash_after_effect:
            await self._die()
        if met.error and not met.done:
            raise refusals.refused(met.error(name))
        result = (broken or effect)() if met.error or last else effect()
        if last:
            await self._die()
        await asyncio.sleep(LATENCY_SECONDS)
        if met.error:
            raise refusals.refused(met.error(name))
        return result

    async def _die(self) -> None:
        self._requests.writes_until_crash = None
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
