"""Choose pods by the ranks that run in them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import click
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import CommandT, fetch
from ddp_client.remote.cluster import Cluster
from ddp_client.views.refused import RefusedError

T = TypeVar("T")

AT_ONCE: Final = 8
"""Programs started in pods at the same time."""

rank_option = click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Use this rank's pod."
)


def ranks_option(text: str, **options: Any) -> Callable[[CommandT], CommandT]:
    """Return the option that chooses several ranks; `text`: its help."""
    return click.option(
        "--rank", "wanted_ranks", type=click.IntRange(0), multiple=True, help=text, **options
    )


async def each_of(pods: Iterable[PodState], ask: Callable[[PodState], Awaitable[T]]) -> list[T]:
    """Return the answers of pods; `AT_ONCE` of them are asked at the same time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def answer(pod: PodState) -> T:
        async with slots:
            return await ask(pod)

    return await asyncio.gather(*map(answer, pods))


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
