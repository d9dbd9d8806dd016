"""Kueue's report about a waiting job, as far as the user may read it."""

import asyncio
from collections.abc import Mapping
from typing import Final

from ddp_operator.api.values.text import OBJECT_NAME, clean, counted
from ddp_operator.job.pods.schedulers.kueue import kueue_group
from ddp_operator.job.status.conditions import QUEUED
from ddp_operator.kube import Resource
from ddp_operator.ports import ClusterError, Manifest, NotFoundError

from ddp_client.remote.cluster import Cluster
from ddp_client.views.job.queueing import UNKNOWN, QueueState, Workload, explain, inactive
from ddp_client.views.job.snapshot import JobSnapshot

_KUEUE: Final = "kueue.x-k8s.io"
_VISIBILITY: Final = f"visibility.{_KUEUE}"
"""Kueue's own API server (feature VisibilityOnDemand)."""
_VERSIONS: Final = ("v1beta2", "v1beta1")
"""Versions of both APIs; Kueue before 0.15 has only the second."""
_MOST: Final = 1000
"""Most pending workloads in Kueue's answer; the position of later ones is unknown."""


async def queue_state(cluster: Cluster, job: JobSnapshot) -> QueueState:
    """Return why a job waits in its queue, and its position.

    Empty if unknown, for example without Kueue or without the right to read it.
    """
    if job.parsed is None or job.status.finished or job.status.reason != QUEUED:
        return UNKNOWN
    namespace, name, queue = job.key.namespace, kueue_group(job.parsed), job.parsed.spec.kueue_queue
    if queue is None:
        return UNKNOWN
    position, stored = await asyncio.gather(
        _position(cluster, namespace, queue, name),
        _get(cluster, _KUEUE, "workloads", name, namespace),
    )
    workload = Workload.read(stored) if stored else None
    if workload is None:
        return QueueState(position)
    waits = workload.message("QuotaReserved", "False")
    closed = await _closed(cluster, queue, namespace) if waits else ""
    return explain(workload, name, position=position, closed=closed)


async def _position(cluster: Cluster, namespace: str, queue: str, workload: str) -> str:
    """Return how many jobs are ahead of a workload in its queue, as text; empty if unknown."""
    answer = await _get(
        cluster,
        _VISIBILITY,
        "localqueues",
        queue,
        namespace,
        subresource="pendingworkloads",
        params={"limit": str(_MOST)},
    )
    items = (answer or {}).get("items") or []
    entry = next((item for item in items if item["metadata"]["name"] == workload), None)
    if entry is None:
        return ""
    # 0, the first place, is omitted in Go's JSON.
    ahead, of_all = (entry.get(f"positionIn{kind}Queue") or 0 for kind in ("Local", "Cluster"))
    if not of_all:
        return f"quota; it is next in queue {clean(queue)}"
    others = "all queues that share its quota"
    if not ahead:
        return f"{counted(of_all, 'job')} ahead in {others}; it is next in queue {clean(queue)}"
    return f"{counted(ahead, 'job')} ahead in queue {clean(queue)}, {of_all} in {others}"


async def _closed(cluster: Cluster, queue: str, namespace: str) -> str:
    """Return why a queue admits nothing; its ClusterQueue, where readable, knows it best."""
    local = await _get(cluster, _KUEUE, "localqueues", queue, namespace)
    if local is None or not (why := inactive(local)):
        return ""
    name = str((local.get("spec") or {}).get("clusterQueue"))
    whole = (
        await _get(cluster, _KUEUE, "clusterqueues", name) if OBJECT_NAME.fullmatch(name) else None
    )
    return (inactive(whole) if whole else "") or why


async def _get(
    cluster: Cluster,
    group: str,
    plural: str,
    name: str,
    namespace: str | None = None,
    *,
    subresource: str = "",
    params: Mapping[str, str] | None = None,
) -> Manifest | None:
    """Return an object of Kueue; None if there is none, or the user may not read it."""
    for version in _VERSIONS:
        resource = Resource(group, version, plural)
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        try:
            answer: Manifest = await cluster.client.request("GET", path, params=params)
        except NotFoundError:
            continue
        except ClusterError:
            return None
        return answer
    return None
