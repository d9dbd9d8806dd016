"""Plays scheduler and kubelet: gives pods a node and reports, as a kubelet does, how they fare."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
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
    """Reports the state of one namespace's pods; every method takes a pod's name."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.cordoned: set[str] = set()
        """Nodes on which `live` starts no pod."""
        self.binds = True
        """Whether `live` gives pods their nodes; a scheduler does it otherwise."""

    async def run(self, pod: str, *, ip: str = "", node: str = "") -> None:
        """Schedule a pod, run its containers and find them ready, at an address and on a node if
        they are given.
        """
        manifest = await self.schedule(pod, node)
        running = {"running": {"startedAt": _now()}}
        address = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
        await self._report(manifest, phase="Running", ready=True, state=running, address=address)

    async def schedule(self, pod: str, node: str = "") -> Json:
        """Bind a pod to this node, or to the one that its selector names, else to `node-1`, unless
        it has one; returns the pod.
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
        """Schedule a pod whose containers wait for something that does not come."""
        manifest = await self.schedule(pod)
        waiting = {"waiting": {"reason": reason, "message": message}}
        await self._report(manifest, phase="Pending", ready=False, state=waiting)

    async def succeed(self, pod: str, *, message: str = "", in_seconds: float = 0) -> None:
        """End a pod well; `message` is the trainer's termination message.

        `in_seconds`: when it ended, by its node's clock, from now on.
        """
        await self._end(
            pod,
            "Succeeded",
            exit_code=0,
            reason="Completed",
            message=message,
            in_seconds=in_seconds,
        )

    async def fail(
        self, pod: str, *, exit_code: int = 1, reason: str = "Error", message: str = ""
    ) -> None:
        """End a pod with an exit code."""
        await self._end(pod, "Failed", exit_code=exit_code, reason=reason, message=message)

    async def evict(self, pod: str, *, reason: str = "EvictionByEvictionAPI") -> None:
        """End a pod because its node is drained: it is marked as disrupted, then killed."""
        await self._end(pod, "Failed", exit_code=137, reason="Error", disruption=reason)

    async def gate(self, pod: str) -> None:
        """Say of a pod what the API server says of one with a scheduling gate."""
        gated = _condition("PodScheduled", "SchedulingGated", value=False)
        await self._patch_status(pod, {"conditions": [gated]})

    async def evict_for_quota(self, pod: str, *, message: str) -> None:
        """Say of a pod what Kueue says before it deletes it."""
        target = {**_condition("TerminationTarget", "WorkloadEvicted"), "message": message}
        await self._patch_status(pod, {"conditions": [target]})

    async def mark_disrupted(self, pod: str, *, reason: str = "EvictionByEvictionAPI") -> None:
        """Announce a disruption; the pod still runs."""
        await self._patch_status(pod, {"conditions": [_condition("DisruptionTarget", reason)]})

    async def finish(self, pod: str) -> None:
        """End the termination of a deleted pod: it is gone afterwards."""
        path = PODS.path(namespace=self._namespace, name=pod)
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        try:
            await self._client.request("DELETE", path, body=now)
        except NotFoundError:
            return

    async def let_go(self, *pods: str) -> None:
        """End the termination of pods as soon as somebody asks for their deletion."""

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
        """Do once what a kubelet does by itself: run pods that may run, and end deleted ones."""
        answer = await self._client.request("GET", PODS.path(namespace=self._namespace))
        for pod in answer["items"]:
            name = pod["metadata"]["name"]
            ended = pod["status"]["phase"] in ("Failed", "Succeeded")
            with contextlib.suppress(ClusterError):  # it has changed meanwhile
                if pod["metadata"].get("deletionGracePeriodSeconds"):
                    if not ended:
                        await self.fail(name, exit_code=143)
                    await self.finish(name)
                elif not ended and self._may_start(pod):
                    await self.run(name)

    def _may_start(self, pod: Json) -> bool:
        spec = pod["spec"]
        placed = "nodeName" in spec
        if not self.binds:
            return placed and pod["status"]["phase"] == "Pending"
        return not (placed or spec.get("schedulingGates") or _node_of(spec) in self.cordoned)

    async def _end(
        self,
        pod: str,
        phase: str,
        *,
        exit_code: int,
        reason: str,
        message: str = "",
        disruption: str = "",
        in_seconds: float = 0,
    ) -> None:
        manifest = await self.schedule(pod)
        ended = {
            "exitCode": exit_code,
            "reason": reason,
            "message": message,
            "finishedAt": _now(in_seconds),
        }
        await self._report(
            manifest,
            phase=phase,
            ready=False,
            state={"terminated": ended},
            further=[_condition("DisruptionTarget", disruption)] if disruption else [],
        )

    async def _report(
        self,
        manifest: Json,
        *,
        phase: str,
        ready: bool,
        state: Json,
        further: Sequence[Json] = (),
        address: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        containers = manifest["spec"]["containers"]
        status: Json = {
            **address,
            "phase": phase,
            "conditions": [_condition("Ready", "", value=ready), *further],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": ready,
                    "restartCount": 0,
                    "state": state,
                }
                for container in containers
            ],
        }
        await self._patch_status(manifest["metadata"]["name"], status)

    async def _patch_status(self, pod: str, status: Json) -> None:
        path = PODS.path(namespace=self._namespace, name=pod, subresource="status")
        body = {"status": status}
        await self._client.request("PATCH", path, body=body, content_type=_STRATEGIC_MERGE_PATCH)


async def start(jobs: Jobs, kubelet: FakeKubelet, **spec: Any) -> None:
    """Bring a job of two pods, or as `spec` says, to Running."""
    await jobs.create(job(**{"replicas": 2, **spec}))
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await run_all(jobs, kubelet)


async def run_all(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Bring all pods that nobody has deleted to life."""
    for pod in await jobs.live_pods():
        await kubelet.run(pod)
    status = await jobs.until_phase("Running")
    assert status.ready_replicas == len(await jobs.live_pods())


def _node_of(spec: Json) -> str:
    """The node that a pod has, or that its selector names; else `node-1`."""
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
