"""The user's side of the tests: jobs of one namespace and their objects."""

import contextlib
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

from ddp_operator.api.constants import GROUP, LABEL_JOB_NAME, PLURAL, VERSION
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import EVENTS, NETWORK_POLICIES, PODS, SERVICES, ApiClient, Resource
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import NotFoundError

from tests.good_manifests import Json
from tests.waiting import eventually

JOBS = Resource(GROUP, VERSION, PLURAL)

_POLL_SECONDS = 0.05


class Jobs:
    """Creates, changes and watches the DDPJobs of one namespace, by default one named `job`."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def create(self, manifest: Json, *, name: str | None = None) -> Json:
        """Create a job, perhaps under another name, and return it as stored."""
        manifest = deepcopy(manifest)
        manifest["metadata"]["name"] = name or manifest["metadata"]["name"]
        created: Json = await self._client.request(
            "POST", JOBS.path(namespace=self.namespace), body=manifest
        )
        return created

    async def get(self, name: str = "job") -> Json:
        found: Json = await self._client.request(
            "GET", JOBS.path(namespace=self.namespace, name=name)
        )
        return found

    async def set_spec(self, name: str = "job", **fields: Any) -> None:
        path = JOBS.path(namespace=self.namespace, name=name)
        body = {"spec": fields}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def annotate(self, name: str = "job", **annotations: str) -> None:
        """Set annotations of a job, by the last part of their names."""
        path = JOBS.path(namespace=self.namespace, name=name)
        named = {f"{JOBS.group}/{key.replace('_', '-')}": text for key, text in annotations.items()}
        body = {"metadata": {"annotations": named}}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete_pod(self, pod: str) -> None:
        await self._client.request("DELETE", PODS.path(namespace=self.namespace, name=pod))

    async def delete(self, name: str = "job") -> None:
        """Delete a job, but leave its dependents to the garbage collector."""
        await self._client.request("DELETE", JOBS.path(namespace=self.namespace, name=name))

    async def collect(self, name: str = "job") -> None:
        """Delete the pods of a deleted job, as the garbage collector does."""
        for pod in await self.live_pods(name):
            with contextlib.suppress(NotFoundError):
                await self.delete_pod(pod)

    async def exists(self, name: str = "job") -> bool:
        try:
            await self.get(name)
        except NotFoundError:
            return False
        return True

    async def release(self, name: str = "job") -> None:
        """Remove the finalizers that hold a deleted job back."""
        path = JOBS.path(namespace=self.namespace, name=name)
        body = {"metadata": {"finalizers": None}}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def discard(self, name: str = "job") -> None:
        """Delete a job and its dependents without waiting for the garbage collector."""
        await self.delete(name)
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        children = [PODS.path(namespace=self.namespace, name=pod) for pod in await self.pods(name)]
        for path in (*children, SERVICES.path(namespace=self.namespace, name=name)):
            with contextlib.suppress(NotFoundError):
                await self._client.request("DELETE", path, body=now)

    async def status(self, name: str = "job") -> DDPJobStatus:
        """Return a job's status, which is empty before the operator has written one."""
        return DDPJobStatus.model_validate((await self.get(name)).get("status") or {})

    async def until(
        self, condition: Callable[[DDPJobStatus], bool], name: str = "job"
    ) -> DDPJobStatus:
        """Wait until a job's status meets a condition, and return it."""
        seen = DDPJobStatus()

        async def holds() -> bool:
            nonlocal seen
            seen = await self.status(name)
            return condition(seen)

        await self._eventually(holds, describe=lambda: f"job {name}: {seen!r}")
        return seen

    async def until_phase(self, phase: str, name: str = "job") -> DDPJobStatus:
        """Wait until a job is in a phase, and return its status."""
        return await self.until(
            lambda status: status.observed_generation > 0 and status.phase == phase, name
        )

    async def pods(self, name: str = "job") -> dict[str, Json]:
        """Return the pods with a job's label by name, including terminating ones."""
        params = {"labelSelector": f"{LABEL_JOB_NAME}={name}"}
        path = PODS.path(namespace=self.namespace)
        answer = await self._client.request("GET", path, params=params)
        return {item["metadata"]["name"]: item for item in answer["items"]}

    async def live_pods(self, name: str = "job") -> set[str]:
        """Return the names of the pods that are not deleted."""
        pods = await self.pods(name)
        return {pod for pod, item in pods.items() if "deletionTimestamp" not in item["metadata"]}

    async def until_pods(self, *expected: str, name: str = "job") -> dict[str, Json]:
        """Wait until exactly these pods exist, besides terminating ones; return all pods."""
        seen: set[str] = set()

        async def holds() -> bool:
            nonlocal seen
            seen = await self.live_pods(name)
            return seen == set(expected)

        await self._eventually(holds, describe=lambda: f"pods {sorted(seen)}")
        return await self.pods(name)

    async def until_settled(self, name: str = "job") -> None:
        """Wait until the status has the current number of ready pods."""

        async def settled() -> bool:
            ready = sum(_is_ready(pod) for pod in (await self.pods(name)).values())
            return (await self.status(name)).ready_replicas == ready

        await self._eventually(settled, describe=lambda: f"job {name}: counts are late")

    async def until_gone(self, *pods: str) -> None:
        """Wait until none of these pods exists, terminating or not."""

        async def gone() -> bool:
            existing = await self.pods()
            return not existing.keys() & set(pods)

        await self._eventually(gone, describe=lambda: f"{pods} do not go")

    async def until_told(self, reason: str, name: str = "job") -> str:
        """Wait for an Event of this reason about a job, and return its message."""
        seen: dict[str, str] = {}

        async def told() -> bool:
            nonlocal seen
            seen = await self.events(name)
            return reason in seen

        await self._eventually(told, describe=lambda: f"no Event {reason} among {seen}")
        return seen[reason]

    async def events(self, name: str = "job") -> dict[str, str]:
        """Return the messages of the Events about a job, by reason."""
        path = EVENTS.path(namespace=self.namespace)
        params = {"fieldSelector": f"involvedObject.name={name}"}
        answer = await self._client.request("GET", path, params=params)
        return {item["reason"]: item["message"] for item in answer["items"]}

    async def service(self, name: str = "job") -> Json:
        path = SERVICES.path(namespace=self.namespace, name=name)
        found: Json = await self._client.request("GET", path)
        return found

    async def admit_all_traffic(self, name: str = "job") -> None:
        """Change a job's NetworkPolicy to admit all traffic."""
        path = NETWORK_POLICIES.path(namespace=self.namespace, name=name)
        body: Json = {"spec": {"ingress": [{}]}}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def network_policy(self, name: str = "job") -> Json | None:
        """Return a job's NetworkPolicy, or None."""
        path = NETWORK_POLICIES.path(namespace=self.namespace, name=name)
        try:
            found: Json = await self._client.request("GET", path)
        except NotFoundError:
            return None
        return found

    async def _eventually(
        self, condition: Callable[[], Awaitable[bool]], *, describe: Callable[[], object]
    ) -> None:
        await eventually(condition, interval_seconds=_POLL_SECONDS, describe=describe)


def _is_ready(pod: Json) -> bool:
    """Return whether a pod counts as ready; a succeeded one does."""
    status = pod["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    succeeded: bool = status["phase"] == "Succeeded"
    return succeeded or (status["phase"] == "Running" and conditions.get("Ready") == "True")
