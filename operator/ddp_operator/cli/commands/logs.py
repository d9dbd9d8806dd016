"""The command `logs`."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection
from typing import Final

import click

from ddp_operator.cli.app import connection_options, job_argument, job_key, on_cluster
from ddp_operator.cli.commands.look import fetch, read_duration
from ddp_operator.client.cluster import Cluster, NoSuchJobError
from ddp_operator.client.logs import Follower, Line, Wanted, printed
from ddp_operator.client.seen import SeenJob
from ddp_operator.client.text import clean_output, counted
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key, UnavailableError
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.pods import Pods

LOOK_SECONDS: Final = 2.0
"""Between two looks at which pods there are."""
_MOST_PODS: Final = 32
_CONNECTIONS: Final = 60
"""As many as the client opens at a time, less some to look at the job meanwhile."""
_MOST_CHARACTERS: Final = 4096


@click.command()
@connection_options
@job_argument
@click.option(
    "--rank",
    "wanted_ranks",
    type=click.IntRange(0),
    multiple=True,
    help="Only this one's pod; can be given several times.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until the job ends, also with pods that take others' places.",
)
@click.option(
    "--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines of each pod."
)
@click.option(
    "--since", callback=read_duration, metavar="DURATION", help="Only what is younger, such as 5m."
)
@click.option(
    "--max-pods",
    type=click.IntRange(1, _CONNECTIONS),
    default=_MOST_PODS,
    show_default=True,
    help="Logs that are read at a time.",
)
def logs(
    name: str,
    wanted_ranks: tuple[int, ...],
    follow: bool,
    tail: int | None,
    since: float | None,
    max_pods: int,
) -> None:
    """Show what all ranks print as one stream, each line with its rank.

    Without -f lines are in the order of time, as far as the nodes' clocks agree.
    """
    wanted = Wanted(tail, None if since is None else max(math.ceil(since), 1))

    async def act(cluster: Cluster, namespace: str) -> None:
        key = job_key(namespace, name)
        show = follow_logs if follow else _show_printed
        await show(cluster, key, wanted, frozenset(wanted_ranks), max_pods)

    on_cluster(act)


async def _show_printed(
    cluster: Cluster, key: Key, wanted: Wanted, only: Collection[int], most: int
) -> None:
    seen, pods = await fetch(cluster, key)
    chosen = [pod for pod in chosen_pods(seen, pods, only) if pod.started or pod.exit]
    if not chosen:
        click.echo("No pod has started yet; kubectl ddp why says what they wait for.", err=True)
    _tell_left_out(len(chosen) - most)
    async for line in printed(cluster, chosen[:most], wanted):
        _print(seen, line)


async def follow_logs(
    cluster: Cluster,
    key: Key,
    wanted: Wanted = Wanted(),  # noqa: B008 - frozen
    only: Collection[int] = (),
    most: int = _MOST_PODS,
    *,
    on_look: Callable[[SeenJob], None] = lambda _: None,
) -> None:
    """Print what all ranks print until the job ends; `on_look` is told of it whenever it was
    looked at.
    """
    follower = Follower(cluster, wanted)
    clock = asyncio.get_running_loop().time
    left_out, ends = 0, False
    seen, pods = await fetch(cluster, key)
    try:
        while True:
            on_look(seen)
            before, left_out = left_out, follower.look(chosen_pods(seen, pods, only), most)
            if left_out > before:
                _tell_left_out(left_out)
            until = clock() + LOOK_SECONDS
            while (wait := until - clock()) > 0:
                with contextlib.suppress(TimeoutError):
                    _print(seen, await asyncio.wait_for(follower.lines.get(), wait))
                for _ in range(follower.lines.qsize()):
                    _print(seen, follower.lines.get_nowait())
            if ends and follower.idle and not left_out:
                return
            # One more look after the end: what had begun by then is read.
            ends = seen.status.finished or seen.deleting
            with contextlib.suppress(UnavailableError):
                try:
                    seen, pods = await fetch(cluster, key)
                except NoSuchJobError:
                    ends = True
    finally:
        await follower.close()


def chosen_pods(seen: SeenJob, pods: Pods, only: Collection[int]) -> list[PodState]:
    """The pods of those ranks, or all, in their order.

    Raises:
        RefusedError: no pod has such a rank.
    """
    if not only:
        return [pods.current[index] for index in sorted(pods.current)]
    if seen.job is None:
        raise RefusedError(f"which pod has which rank cannot be told: {seen.problem}")
    size = ranks.world_size(seen.job.spec)
    if max(only) >= size:
        raise RefusedError(f"--rank {max(only)}: the job has ranks 0 to {size - 1} only")
    indexes = sorted({ranks.pod_of(seen.job.spec, rank) for rank in only})
    return [pods.current[index] for index in indexes if index in pods.current]


def _tell_left_out(count: int) -> None:
    if count > 0:
        said = f"The logs of {counted(count, 'more pod')} are left out"
        click.echo(f"{said}: choose with --rank, or raise --max-pods.", err=True)


def _print(seen: SeenJob, line: Line) -> None:
    index = line.pod.identity.index
    own = ranks.ranks(seen.job.spec, index) if seen.job else range(index, index + 1)
    who = f"{own.start}" if len(own) == 1 else f"{own.start}-{own.stop - 1}"
    last = ranks.world_size(seen.job.spec) - 1 if seen.job else seen.replicas - 1
    width = len(str(last)) * (1 if len(own) == 1 else 2) + (len(own) > 1)
    text = clean_output(line.text, _MOST_CHARACTERS)
    click.echo(f"{who:>{width}} {'!' if line.note else '|'} {text}", err=line.note)
