"""The queue of a namespace, and the Workloads in it."""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from ddp_operator.kube import ApiClient, Resource
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import AlreadyExistsError, NotFoundError

from tests.cluster import ClusterUnavailableError
from tests.cluster.kueue import Host, Kueue
from tests.good_manifests import Json, container, job, template
from tests.integration.jobs import Jobs
from tests.skipping import skip_or_fail
from tests.waiting import eventually

_GROUP: Final = ("kueue.x-k8s.io", "v1beta2")
_FLAVORS: Final = Resource(*_GROUP, "resourceflavors")
_CLUSTER_QUEUES: Final = Resource(*_GROUP, "clusterqueues")
_LOCAL_QUEUES: Final = Resource(*_GROUP, "localqueues")
_PRIORITIES: Final = Resource(*_GROUP, "workloadpriorityclasses")
WORKLOADS: Final = Resource(*_GROUP, "workloads")
_API: Final = "kueue.x-k8s.io/v1beta2"

NAME: Final = "team"
CHIP: Final = "example.com/chip"
"""The resource with quota; a test sets how many a node has."""
URGENT: Final = "urgent"
"""The name of the only priority class."""
SINGLE: Final[dict[str, Any]] = {"restart": {"scope": "Pod"}}
"""A lost pod is replaced alone, also without a launcher."""


def installed(host: Host) -> Kueue:
    """Install Kueue beside a cluster; without its program, skip the test or fail it in CI."""
    running = Kueue(host)
    try:
        running.install()
    except ClusterUnavailableError as reason:
        skip_or_fail("KUEUE", reason)
    return running


def queued_job(*, urgent: bool = False, **spec: Any) -> Json:
    """Return a job of two pods in the queue; each pod requests one chip."""
    trainer = container(resources={"limits": {CHIP: 1}})
    labels = {"kueue.x-k8s.io/priority-class": URGENT} if urgent else {}
    pods = {"metadata": {"labels": labels}, **template(trainer)}
    return job(**{"replicas": 2, "scheduling": {"queueName": NAME}, "template": pods, **spec})


class Queue:
    """The queue of one namespace."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def drain(self) -> None:
        """Evict all running jobs and admit none."""
        await self._set_stop_policy("HoldAndDrain")

    async def reopen(self) -> None:
        """Admit waiting jobs again."""
        await self._set_stop_policy("None")

    async def hold(self) -> None:
        """Admit no job; running jobs continue."""
        await self._set_stop_policy("Hold")

    async def set_active(self, workload: str, active: bool) -> None:
        """Deactivate or activate a Workload as an administrator does."""
        path = WORKLOADS.path(namespace=self._namespace, name=workload)
        body = {"spec": {"active": active}}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def finish(self, workload: Json) -> None:
        """Finish a Workload as MultiKueue does when its copy is finished."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            **{"type": "Finished", "status": "True", "lastTransitionTime": now},
            **{"reason": "Succeeded", "message": "Pods succeeded: 0/2."},
        }
        body = {"status": {"conditions": [*workload["status"]["conditions"], condition]}}
        name = workload["metadata"]["name"]
        path = WORKLOADS.path(namespace=self._namespace, name=name, subresource="status")
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def _set_stop_policy(self, policy: str) -> None:
        path = _CLUSTER_QUEUES.path(name=self._namespace)
        body = {"spec": {"stopPolicy": policy}}
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete_workload(self, workload: str) -> None:
        """Delete a Workload."""
        path = WORKLOADS.path(namespace=self._namespace, name=workload)
        await self._client.request("DELETE", path)

    async def used(self) -> int:
        """Return the number of reserved chips."""
        stored = await self._client.request("GET", _CLUSTER_QUEUES.path(name=self._namespace))
        [flavor] = stored["status"]["flavorsReservation"]
        return int(flavor["resources"][0]["total"])

    async def until_used(self, chips: int) -> None:
        """Wait until this number of chips is reserved."""

        async def holds() -> bool:
            return await self.used() == chips

        await eventually(holds, interval_seconds=0.1, describe=lambda: f"{chips} chips reserved")

    async def workloads(self) -> dict[str, Json]:
        """Return all Workloads of the namespace by name."""
        answer = await self._client.request("GET", WORKLOADS.path(namespace=self._namespace))
        return {item["metadata"]["name"]: item for item in answer["items"]}

    async def until_finished(self) -> None:
        """Wait until all Workloads are finished."""
        await self.until_workloads(lambda all_: all(is_true(w, "Finished") for w in all_.values()))

    async def until_workloads(
        self, condition: Callable[[dict[str, Json]], bool]
    ) -> dict[str, Json]:
        """Wait until the Workloads fulfil a condition, and return them."""
        workloads: dict[str, Json] = {}

        async def holds() -> bool:
            nonlocal workloads
            workloads = await self.workloads()
            return condition(workloads)

        await eventually(holds, interval_seconds=0.1, describe=lambda: f"workloads {workloads}")
        return workloads


async def next_second() -> None:
    """Wait for the next second, because Kueue does not order Workloads of the same second."""
    now = int(time.time())
    await eventually(lambda: time.time() >= now + 1)


async def until_ungated(jobs: Jobs, *names: str) -> None:
    """Wait until a job has exactly these pods, not counting deleted ones, and all are admitted."""

    async def holds() -> bool:
        pods = await jobs.pods()
        live = {name for name in pods if "deletionTimestamp" not in pods[name]["metadata"]}
        return live == {*names} and not any("schedulingGates" in pods[n]["spec"] for n in live)

    await eventually(holds, interval_seconds=0.1, describe=lambda: f"pods {names} are not ungated")


async def until_ready(jobs: Jobs, name: str) -> None:
    """Wait until a pod is ready."""

    async def holds() -> bool:
        conditions = (await jobs.pods())[name].get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    await eventually(holds, interval_seconds=0.1, describe=lambda: f"pod {name} is not ready")


def was_let_go(pod: Json) -> bool:
    """Return whether only Kueue's finalizer keeps a deleted pod."""
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)


def is_true(workload: Json, condition: str) -> bool:
    """Return whether a condition of an object is true."""
    conditions = workload.get("status", {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


async def workload_of(queue: Queue, job: str = "job") -> Json:
    """Return the only Workload of a job that is not finished."""
    workloads = await queue.until_workloads(
        lambda all_: sum(_is_of(job, name, each) for name, each in all_.items()) == 1
    )
    return next(each for name, each in workloads.items() if _is_of(job, name, each))


def _is_of(job: str, name: str, workload: Json) -> bool:
    return name.rsplit("-", 2)[0] == job and not is_true(workload, "Finished")


def admission(workload: Json) -> tuple[str, str]:
    """Return a Workload's UID and the time of its quota reservation."""
    [reserved] = [c for c in workload["status"]["conditions"] if c["type"] == "QuotaReserved"]
    assert reserved["status"] == "True"
    return workload["metadata"]["uid"], reserved["lastTransitionTime"]


def _cluster_queue(chips: int, flavor: str) -> Json:
    quota = {"name": flavor, "resources": [{"name": CHIP, "nominalQuota": chips}]}
    return {
        "namespaceSelector": {},
        # Otherwise other jobs can overtake one that has just found no quota.
        "queueingStrategy": "StrictFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [CHIP], "flavors": [quota]}],
    }


def queue_objects(
    namespace: str, chips: int = 2, *, nodes: Json | None = None
) -> list[tuple[Resource, Json]]:
    """Return the objects of the queue `team` of a namespace; see `new_queue`."""
    flavor = namespace if nodes else "default"
    queue = {"clusterQueue": namespace}

    def made(kind: str, name: str, in_: str = "", **fields: Any) -> Json:
        metadata = {"name": name, **({"namespace": in_} if in_ else {})}
        return {"apiVersion": _API, "kind": kind, "metadata": metadata, **fields}

    return [
        (_FLAVORS, made("ResourceFlavor", flavor, spec=nodes or {})),
        (_PRIORITIES, made("WorkloadPriorityClass", URGENT, value=1000)),
        (_CLUSTER_QUEUES, made("ClusterQueue", namespace, spec=_cluster_queue(chips, flavor))),
        (_LOCAL_QUEUES, made("LocalQueue", NAME, namespace, spec=queue)),
    ]


async def new_queue(
    client: ApiClient, namespace: str, chips: int = 2, *, nodes: Json | None = None
) -> Queue:
    """Create the queue `team` of a namespace, by default with quota for one job of two pods.

    Args:
        nodes: spec of its ResourceFlavor; None: the flavor of all nodes.
    """
    for resource, body in queue_objects(namespace, chips, nodes=nodes):
        path = resource.path(namespace=body["metadata"].get("namespace"))
        with contextlib.suppress(AlreadyExistsError):  # all tests share some objects
            await client.request("POST", path, body=body)
    return Queue(client, namespace)


async def remove_queue(client: ApiClient, namespace: str) -> None:
    """Delete the queue of a namespace, so that Kueue stops trying to admit its jobs."""
    with contextlib.suppress(NotFoundError):
        await client.request("DELETE", _CLUSTER_QUEUES.path(name=namespace))
