"""Gather the facts of a report from a cluster: a few reads, and one program in one pod."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from ddp_operator.api.values.text import clean
from ddp_operator.kube.resources import EVENTS
from ddp_operator.ports import ClusterError, Key

from ddp_client.remote.channels import run_in_pod
from ddp_client.remote.cluster import Cluster, listed
from ddp_client.remote.logs import Wanted, printed
from ddp_client.report.facts import EventFacts, Facts, LogEnd, PodFacts
from ddp_client.report.history import History, read_bytes
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

_MAX_METRICS: Final = 16 * 1024 * 1024
"""Most bytes of metrics.jsonl, which is read through the API server."""
_DIGITS: Final = 20
"""Most digits of the file's size; Python refuses to read a number of thousands."""
_MAX_EVENTS: Final = 500
_LOG_LINES: Final = 50
_SECONDS: Final = 60.0
_READ: Final = (
    'cd -- "${DDP_CHECKPOINT_DIR:?is not set}" && wc -c < metrics.jsonl && '
    f"tail -c {_MAX_METRICS} metrics.jsonl"
)
"""Prints the file's size and its last bytes."""
_EVER: Final = datetime.min.replace(tzinfo=UTC)


async def gather(cluster: Cluster, key: Key, *, history: History | None = None) -> Facts:
    """Gather the facts of a report.

    Without `history`, the metrics are read in pod 0. Events, metrics and the log that cannot be
    read become gaps of the facts.

    Raises:
        NoSuchJobError, NotInstalledError: the job or the CRD does not exist.
        ClusterError: the job or its pods could not be read.
    """
    manifest = await cluster.job(key)
    job = JobSnapshot.read(manifest)
    own = [
        replace(pod, state=job.placed(pod.state))
        async for item in cluster.stored_pods(key)
        if (pod := PodFacts.read(item)) and pod.state.owner_uid == job.uid
    ]
    events, gaps = await _events(cluster, key, job.uid)
    if history is None:
        history, more = await _history(cluster, own)
        gaps += more
    log, more = await _log(cluster, Pods.of(job, (pod.state for pod in own)))
    return Facts.of(
        manifest,
        now=datetime.now(UTC),
        pods=own,
        events=events,
        history=history,
        log=log,
        gaps=gaps + more,
    )


async def _events(
    cluster: Cluster, key: Key, uid: str
) -> tuple[list[EventFacts | None], list[str]]:
    path = EVENTS.path(namespace=key.namespace)
    params = {"fieldSelector": f"involvedObject.uid={uid}"}
    try:
        events = await listed(cluster.client, path, params, most=_MAX_EVENTS)
    except ClusterError as error:
        return [], [f"the job's events could not be read: {clean(error.message, 300)}"]
    return [EventFacts.read(item) for item in events], []


async def _log(cluster: Cluster, pods: Pods) -> tuple[LogEnd | None, list[str]]:
    """Read the end of the log of the pod that failed first, or of rank 0's pod."""
    pod = pods.first_failed or pods.current.get(0)
    if pod is None or not (pod.started or pod.exit):
        return None, []
    lines, gaps = list[str](), list[str]()
    async for line in printed(cluster, [pod], Wanted(tail=_LOG_LINES)):
        if line.note:
            gaps.append(f"the log of pod {pod.key.name} could not be read: {line.text}")
        else:
            lines.append(line.text)
    return (LogEnd(pod.key.name, tuple(lines[-_LOG_LINES:])) if lines else None), gaps


async def _history(cluster: Cluster, pods: Iterable[PodFacts]) -> tuple[History, list[str]]:
    """Read metrics.jsonl in pod 0: its rank 0 writes the file."""
    running = [
        pod
        for pod in pods
        if pod.state.identity.index == 0 and pod.state.started and not pod.state.deleting
    ]
    otherwise = "give it with --metrics FILE to see each logged loss, throughput and step times"
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
        problem = clean(error.message, 300)
        return History(), [f"metrics.jsonl could not be read in pod {newest.name}: {problem}"]
    size, _, content = ran.stdout.partition(b"\n")
    if ran.exit_code != 0 or not size.strip().isdigit() or len(size) > _DIGITS:
        problem = clean(ran.stderr.decode(errors="replace"), 300)
        return History(), [
            f"pod {newest.name} has no readable metrics.jsonl: {problem}; {otherwise}"
        ]
    return read_bytes(content, is_cut=int(size) > _MAX_METRICS), []
