"""Choose pods by the ranks that run in them."""

from collections.abc import Collection

import click
from ddp_operator.api import ranks
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import fetch
from ddp_client.remote.cluster import Cluster
from ddp_client.views.changes import RefusedError
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

rank_option = click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Use this rank's pod."
)


def chosen_pods(job: JobSnapshot, pods: Pods, only: Collection[int]) -> list[PodState]:
    """Return the pods of these ranks in order; without ranks, all pods.

    Raises:
        RefusedError: the job has no such rank, or its spec cannot be read.
    """
    if not only:
        return [pods.current[index] for index in sorted(pods.current)]
    if job.parsed is None:
        raise RefusedError(f"--rank: cannot tell which pod has which rank: {job.problem}")
    size = ranks.world_size(job.parsed.spec)
    if max(only) >= size:
        raise RefusedError(f"--rank {max(only)}: the job has ranks 0 to {size - 1} only")
    indexes = sorted({ranks.pod_of(job.parsed.spec, rank) for rank in only})
    return [pods.current[index] for index in indexes if index in pods.current]


async def running_pod(cluster: Cluster, key: Key, rank: int) -> PodState:
    """Return the running pod of a rank.

    Raises:
        RefusedError: the pod does not run.
    """
    job, pods = await fetch(cluster, key)
    found = [pod for pod in chosen_pods(job, pods, (rank,)) if pod.started and not pod.exit]
    if not found:
        raise RefusedError(
            f"the pod of rank {rank} is not running: `kubectl ddp status {key.name}` shows all pods"
        )
    return found[0]
