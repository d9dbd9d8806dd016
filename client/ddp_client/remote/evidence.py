"""Gather the facts of a report from a cluster: a few reads, and one program in one pod."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.values.text import clean
from ddp_operator.kube import PODS, list_pages
from ddp_operator.kube.channels import run_in_pod
from ddp_operator.kube.resources import EVENTS
from ddp_operator.ports import ClusterError, Key, Manifest

from ddp_client.remote.cluster import Cluster
from ddp_client.report.facts import EventFacts, Facts, PodFacts
from ddp_client.report.history import History, read_bytes
from ddp_client.views.job.snapshot import JobSnapshot

_MAX_METRICS: Final = 16 * 1024 * 1024
"""Most bytes of metrics.jsonl, which is read through the API server."""
_DIGITS: Final = 20
"""Most digits of the file's size; Python refuses to read a number of thousands."""
_MAX_EVENTS: Final = 500
_SECONDS: Final = 60.0
_READ: Final = (
    'cd -- "${DDP_CHECKPOINT_DIR:?is not set}" && wc -c < metrics.jsonl && '
    f"tail -c {_MAX_METRICS} metrics.jsonl"
)
"""Prints the file's size and its last bytes."""
_EVER: Final = datetime.min.replace(tzinfo=UTC)


async def gather(cluster: Cluster, key: Key, *, history: History | None = None) -> Facts:
    """Gather the facts of a report.

    Without `history`, the metrics are read in pod 0. Events and metrics that cannot be read become
    gaps of the facts.

    Raises:
        NoSuchJobError, NotInstalledError: the job or the CRD does not exist.
        ClusterError: the job or its pods could not be read.
    """
    manifest, pods = await asyncio.gather(cluster.job(key), _pods(cluster, key))
    job = JobSnapshot.read(manifest)
    own = [
        replace(pod, state=job.placed(pod.state)) for pod in pods if pod.state.owner_uid == job.uid
    ]
    events, gaps = await _events(cluster, key, job.uid)
    if history is None:
        history, more = await _history(cluster, own)
        gaps += more
    return Facts.of(
        manifest, now=datetime.now(UTC), pods=own, events=events, history=history, gaps=gaps
    )


async def _pods(cluster: Cluster, key: Key) -> list[PodFacts]:
    path = PODS.path(namespace=key.namespace)
    params = {"labelSelector": f"{LABEL_JOB_NAME}={key.name}"}
    found: list[PodFacts] = []
    async for items, _ in list_pages(cluster.client, path, params=params):
        found += [pod for item in items if (pod := PodFacts.read(item)) is not None]
    return found


async def _events(
    cluster: Cluster, key: Key, uid: str
) -> tuple[list[EventFacts | None], list[str]]:
    path = EVENTS.path(namespace=key.namespace)
    params = {"fieldSelector": f"involvedObject.uid={uid}"}
    found: list[Manifest] = []
    try:
        async for items, _ in list_pages(cluster.client, path, params=params):
            found += items
            if len(found) >= _MAX_EVENTS:
                break
    except ClusterError as error:
        return [], [f"the job's events could not be read: {clean(error.message, 300)}"]
    return [EventFacts.read(item) for item in found[:_MAX_EVENTS]], []


async def _history(cluster: Cluster, pods: Iterable[PodFacts]) -> tuple[History, list[str]]:
    """Read metrics.jsonl in pod 0: its rank 0 writes the file."""
    running = [
        pod
        for pod in pods
        if pod.state.identity.index == 0 and pod.state.started and not pod.state.deleting
    ]
    otherwise = "give it with --metrics FILE to see loss, throughput and step times"
    if not running:
        return History(), [f"metrics.jsonl was not read: pod 0 is not running; {otherwise}"]
    newest = max(running, key=lambda pod: (pod.state.identity.attempt, pod.created or _EVER))
    try:
        ran = await run_in_pod(
            cluster.client,
            newest.state.key,
            newest.state.container,
            ("sh", "-c", _READ),
            limit_bytes=_MAX_METRICS + 64 * 1024,
            timeout_seconds=_SECONDS,
        )
    except ClusterError as error:
        said = clean(error.message, 300)
        return History(), [f"metrics.jsonl could not be read in pod {newest.name}: {said}"]
    size, _, content = ran.stdout.partition(b"\n")
    if ran.exit_code != 0 or not size.strip().isdigit() or len(size) > _DIGITS:
        said = clean(ran.stderr.decode(errors="replace"), 300)
        return History(), [f"pod {newest.name} has no readable metrics.jsonl: {said}; {otherwise}"]
    return read_bytes(content, is_cut=int(size) > _MAX_METRICS), []
