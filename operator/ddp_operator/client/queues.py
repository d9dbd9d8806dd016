"""Where a job stands in its queue, as Kueue tells whoever may ask."""

from typing import Any, Final

from ddp_operator.client.cluster import Cluster
from ddp_operator.job.pods.schedulers import kueue_group
from ddp_operator.job.status.conditions import QUEUED
from ddp_operator.kube import Resource
from ddp_operator.ports import ClusterError, Manifest, NotFoundError
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean

_VERSIONS: Final = ("v1beta2", "v1beta1")
"""Of Kueue's own API server (its feature VisibilityOnDemand): since 0.15 and since 0.9."""
_MOST: Final = 1000
"""Pending workloads that Kueue tells of at most; whoever stands behind them learns nothing."""


async def place_in_queue(cluster: Cluster, job: JobSnapshot) -> str:
    """In words, how many are ahead of a job that waits in a queue; empty where that cannot be
    told, as without Kueue, or without the right to ask it.
    """
    queue = job.parsed.spec.kueue_queue if job.parsed else None
    if job.parsed is None or queue is None or job.status.reason != QUEUED:
        return ""
    own = kueue_group(job.parsed, job.status.attempt)
    found = [
        item
        for item in await _pending(cluster, job.key.namespace, queue)
        if item["metadata"]["name"] == own
    ]
    if not found:
        return ""
    ahead, of_all = (
        _number(found[0].get(f"positionIn{kind}Queue")) for kind in ("Local", "Cluster")
    )
    if not of_all:
        return f"quota, as the next in queue {clean(queue)}"
    return f"{ahead} ahead of it in queue {clean(queue)}, {of_all} among all that share its quota"


async def _pending(cluster: Cluster, namespace: str, queue: str) -> list[Manifest]:
    for version in _VERSIONS:
        queues = Resource("visibility.kueue.x-k8s.io", version, "localqueues")
        path = queues.path(namespace=namespace, name=queue, subresource="pendingworkloads")
        try:
            answer = await cluster.client.request("GET", path, params={"limit": str(_MOST)})
        except NotFoundError:
            continue
        except ClusterError:
            break
        items: list[Manifest] = answer.get("items") or []
        return items
    return []


def _number(value: Any) -> int:
    """Zero, which JSON of Go leaves out, is the first place."""
    return value if isinstance(value, int) else 0
