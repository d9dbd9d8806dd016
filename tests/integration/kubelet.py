"""A fake scheduler and kubelet: binds pods to nodes and reports their states."""

import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from ddp_operator.api.values.bounded import format_time
from ddp_operator.kube import PODS, ApiClient
from ddp_operator.ports import ClusterError, NotFoundError

from tests.good_manifests import Json, job
from tests.integration.jobs import Jobs
from tests.waiting import eventually

NODE: Final = "node-1"
HOSTNAME: Final = "kubernetes.io/hostname"
"""The label that identifies a node."""
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"


class FakeKubelet:
    """Reports the states of one namespace's pods; every method takes a pod's name."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.cordoned: set[str] = set()
        """Nodes on which `live` starts no pod."""
        self.binds = True
        """False if a scheduler, not `live`, gives pods their nodes."""
        self.ip = ""
        """The address of the pods that `live` runs."""

    async def run(self, pod: str, *, ip: str = "", node: str = "") -> None:
        """Schedule a pod, run its containers and report them ready."""
        manifest = await self.schedule(pod, node)
        running = {"running": {"startedAt": _now()}}
        await self._report(manifest, "Running", running, ip=ip)

    async def schedule(self, pod: str, node: str = "") -> Json:
        """Bind a pod to this node, or to the node of its selector, or to `node-1`; return the pod.

        A pod that has a node keeps it.
        """
        path = PODS.path(namespace=self._namespace, name=pod)
        manifest: Json = await self._client.request("GET", path)
        if "nodeName" not in manifest["spec"]:
            node = node or _node_of(manifest["spec"])
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
            await self._client.request("POST", f"{path}/binding", body=binding)
        return manifest

    async def cannot_start(self, pod: str, *, reason: str, message: str) -> None:
        """Schedule a pod and report its containers as waiting."""
        manifest = await self.schedule(pod)
        waiting = {"waiting": {"reason": reason, "message": message}}
        await self._report(manifest, "Pending", waiting)

    async def succeed(self, pod: str, *, message: str = "", in_seconds: float = 0) -> None:
        """Succeed a pod; `message` is the trainer's termination message.

        `in_seconds`: how much later than now it ended, by its node's clock.
        """
        ended = {"exitCode": 0, "reason": "Completed", "message": message}
        await self._end(pod, "Succeeded", ended, in_seconds=in_seconds)

    async def fail(
        self, pod: str, *, exit_code: int = 1, reason: str = "Error", message: str = ""
    ) -> None:
        ended = {"exitCode": exit_code, "reason": reason, "message": message}
        await self._end(pod, "Failed", ended)

    async def evict(self, pod: str, *, reason: str = "EvictionByEvictionAPI") -> None:
        """Fail a pod as a drain of its node does: marked as disrupted, then killed."""
        ended = {"exitCode": 137, "reason": "Error"}
        await self._end(pod, "Failed", ended, _condition("DisruptionTarget", reason))

    async def gate(self, pod: str) -> None:
        """Report a pod as the API server reports one with a scheduling gate."""
        gated = _condition("PodScheduled", "SchedulingGated", value=False)
        await self._patch_status(pod, {"conditions": [gated]})

    async def evict_for_quota(self, pod: str, *, message: str) -> None:
        """Mark a pod as Kueue does before it deletes it."""
        target = {**_condition("TerminationTarget", "WorkloadEvicted"), "message": message}
        await self._patch_status(pod, {"conditions": [target]})

    async def finish(self, pod: str) -> None:
        """Remove a deleted pod."""
        path = PODS.path(namespace=self._namespace, name=pod)
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        try:
            await self._client.request("DELETE", path, body=now)
        except NotFoundError:
            return

    async def finish_deleted(self, *pods: str) -> None:
        """Remove pods as soon as they are deleted."""

        async def told(pod: str) -> bool:
            path = PODS.path(namespace=self._namespace, name=pod)
            try:
                manifest = await self._client.request("GET", path)
            except NotFoundError:
                return True
            return "deletionTimestamp" in manifest["metadata"]

        for pod in pods:
            await eventually(partial(told, pod))
            await self.finish(pod)

    async def live(self) -> None:
        """Run the pods that may run and remove deleted ones, once."""
        answer = await self._client.request("GET", PODS.path(namespace=self._namespace))
        for pod in answer["items"]:
            name = pod["metadata"]["name"]
            ended = pod["status"]["phase"] in ("Failed", "Succeeded")
            with contextlib.suppress(ClusterError):  # it changed in the meantime
                if pod["metadata"].get("deletionGracePeriodSeconds"):
                    if not ended:
                        await self.fail(name, exit_code=143)
                    await self.finish(name)
                elif not ended and self._may_start(pod):
                    await self.run(name, ip=self.ip)

    def _may_start(self, pod: Json) -> bool:
        spec = pod["spec"]
        placed = "nodeName" in spec
        if not self.binds:
            return placed and pod["status"]["phase"] == "Pending"
        return not (placed or spec.get("schedulingGates") or _node_of(spec) in self.cordoned)

    async def _end(
        self, pod: str, phase: str, ended: Json, *conditions: Json, in_seconds: float = 0
    ) -> None:
        manifest = await self.schedule(pod)
        state = {"terminated": {**ended, "finishedAt": _now(in_seconds)}}
        await self._report(manifest, phase, state, *conditions)

    async def _report(
        self, manifest: Json, phase: str, state: Json, *conditions: Json, ip: str = ""
    ) -> None:
        """Write a pod's status, with one state for all its containers."""
        ready = phase == "Running"
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            }
            for container in manifest["spec"]["containers"]
        ]
        status = {
            "phase": phase,
            "conditions": [_condition("Ready", "", value=ready), *conditions],
            "containerStatuses": containers,
            **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}),
        }
        await self._patch_status(manifest["metadata"]["name"], status)

    async def _patch_status(self, pod: str, status: Json) -> None:
        path = PODS.path(namespace=self._namespace, name=pod, subresource="status")
        body = {"status": status}
        await self._client.request("PATCH", path, body=body, content_type=_STRATEGIC_MERGE_PATCH)


async def start(jobs: Jobs, kubelet: FakeKubelet, **spec: Any) -> None:
    """Create a job, by default of two pods, and bring it to Running.

    It restarts without a pause, unless `spec` has another backoff.
    """
    restart = {"backoff": {"initialSeconds": 0}, **spec.pop("restart", {})}
    await jobs.create(job(**{"replicas": 2, **spec}, restart=restart))
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await run_all(jobs, kubelet)


async def run_job(
    jobs: Jobs, kubelet: FakeKubelet, name: str, *, ip: str = "", **spec: Any
) -> None:
    """Create a job of one pod and bring it to Running; `ip`: the pod's address."""
    await jobs.create(job(name, **spec))
    await jobs.until_pods(f"{name}-0-0", name=name)
    await kubelet.run(f"{name}-0-0", ip=ip)
    await jobs.until_phase("Running", name)


async def run_all(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Run all pods that are not deleted."""
    for pod in await jobs.live_pods():
        await kubelet.run(pod)
    status = await jobs.until_phase("Running")
    assert status.ready_replicas == len(await jobs.live_pods())


def _node_of(spec: Json) -> str:
    """Return the pod's node, or its selector's, or `node-1`."""
    selector = spec.get("nodeSelector") or {}
    return str(spec.get("nodeName") or selector.get(HOSTNAME, NODE))


def _condition(type_: str, reason: str, *, value: bool = True) -> dict[str, Any]:
    return {
        "type": type_,
        "status": "True" if value else "False",
        "reason": reason,
        "lastTransitionTime": _now(),
    }


def _now(in_seconds: float = 0) -> str:
    return format_time(datetime.now(UTC) + timedelta(seconds=in_seconds))
