"""Choose pods by the ranks that run in them."""

from collections.abc import Callable
from typing import Any

import click
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import CommandT, fetch
from ddp_client.remote.cluster import Cluster
from ddp_client.views.refused import RefusedError

rank_option = click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Use this rank's pod."
)


def ranks_option(text: str, **options: Any) -> Callable[[CommandT], CommandT]:
    """Return the option that chooses several ranks; `text`: its help."""
    return click.option(
        "--rank", "wanted_ranks", type=click.IntRange(0), multiple=True, help=text, **options
    )


async def running_pod(cluster: Cluster, key: Key, rank: int) -> PodState:
    """Return the running pod of a rank.

    Raises:
        RefusedError: the pod does not run.
    """
    job, pods = await fetch(cluster, key)
    running = [pod for pod in pods.of_ranks(job, (rank,)) if pod.started and not pod.exit]
    if not running:
        raise RefusedError(
            f"the pod of rank {rank} is not running: `kubectl ddp status {key.name}` shows all pods"
        )
    return running[0]
