"""A job's position in its Kueue queue, if the user may read it."""

from typing import Any, Final

from ddp_operator.client.cluster import Cluster
from ddp_operator.job.pods.schedulers import kueue_group
from ddp_operator.job.status.conditions import QUEUED
from ddp_operator.kube import Resource
from ddp_operator.ports import ClusterError, Manifest, NotFoundError
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean, counted

_VERSIONS: Final = ("v1beta2", "v1beta1")
"""Versions of Kueue's own API server (feature VisibilityOnDemand), since 0.15 and 0.9."""
_MOST: Final = 1000
"""Most pending workloads in Kueue's answer; the position of later ones is unknown."""


async def place_in_queue(cluster: Cluster, job: JobSnapshot) -> str:
    """Return how many jobs are ahead of a job in its queue, as text.

    Empty if unknown, for example without Kueue or without the right to read it.
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
        return f"quota; it is next in queue {clean(queue)}"
    jobs = counted(ahead, "job")
    return f"{jobs} ahead in queue {clean(queue)}, {of_all} in all queues that share its quota"


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
    """Return a position; 0, the first place, is omitted in Go's JSON."""
    return value if isinstance(value, int) else 0
