"""The command `logs`."""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final

import click
from ddp_operator.api import ranks
from ddp_operator.api.values.text import clean_output, counted
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import (
    connection_options,
    fetch,
    job_argument,
    job_key,
    on_cluster,
    read_duration,
)
from ddp_client.cli.commands.pods.selection import chosen_pods
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.remote.following import MOST_HELD, followed
from ddp_client.remote.logs import Line, Wanted, printed
from ddp_client.views.folding import fold, spans
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

_MOST_PODS: Final = 32
_CONNECTIONS: Final = 60
"""The client's connections, less a few for other requests."""
_MOST_CHARACTERS: Final = 4096
_FOLDED_SECONDS: Final = 1.0
"""Equal lines within this time are folded."""
_HELD_SECONDS: Final = 0.3
"""With -f, a line waits this long for equal lines."""


@click.command()
@connection_options
@job_argument
@click.option(
    "--rank",
    "wanted_ranks",
    type=click.IntRange(0),
    multiple=True,
    help="Only this rank's pod; lines that name another rank are left out. Repeatable.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the job ends, including pods that replace others.",
)
@click.option(
    "--tail", type=click.IntRange(0), metavar="LINES", help="Only this many last lines of each pod."
)
@click.option(
    "--since", callback=read_duration, metavar="DURATION", help="Only newer lines, such as 5m."
)
@click.option(
    "--max-pods",
    type=click.IntRange(1, _CONNECTIONS),
    default=_MOST_PODS,
    show_default=True,
    help="Most logs read at the same time.",
)
@click.option(
    "--fold/--no-fold",
    default=True,
    show_default=True,
    help="Show equal lines of several pods once, as [0-7 x8].",
)
def logs(
    name: str,
    wanted_ranks: tuple[int, ...],
    follow: bool,
    tail: int | None,
    since: float | None,
    max_pods: int,
    fold: bool,
) -> None:
    """Show the logs of all ranks as one stream.

    Each line begins with its rank. Without -f, lines are sorted by time, as far as the nodes'
    clocks agree.
    """
    wanted = Wanted(tail, None if since is None else max(math.ceil(since), 1))

    async def act(cluster: Cluster, namespace: str) -> None:
        key = job_key(namespace, name)
        show = follow_logs if follow else _show_printed
        await show(cluster, key, wanted, frozenset(wanted_ranks), max_pods, folds=fold)

    on_cluster(act)


async def _show_printed(
    cluster: Cluster, key: Key, wanted: Wanted, only: Collection[int], most: int, *, folds: bool
) -> None:
    job, pods = await fetch(cluster, key)
    chosen = [pod for pod in chosen_pods(job, pods, only) if pod.started or pod.exit]
    if not chosen:
        click.echo("No pod has started yet; run kubectl ddp why to see the reason.", err=True)
    _tell_left_out(len(chosen) - most)
    held: list[Line] = []
    async for line in printed(cluster, chosen[:most], wanted):
        if held and (
            len(held) >= MOST_HELD or line.time - held[0].time >= timedelta(seconds=_FOLDED_SECONDS)
        ):
            _print(job, held, only, folds=folds)
            held = []
        held.append(line)
    _print(job, held, only, folds=folds)


async def follow_logs(
    cluster: Cluster,
    key: Key,
    wanted: Wanted = Wanted(),  # noqa: B008 - frozen
    only: Collection[int] = (),
    most: int = _MOST_PODS,
    *,
    folds: bool = True,
    on_update: Callable[[JobSnapshot], None] = lambda _: None,
) -> None:
    """Print the logs of all ranks until the job ends; `on_update` receives each snapshot."""
    before = 0

    def choose(job: JobSnapshot, pods: Pods) -> list[PodState]:
        return chosen_pods(job, pods, only)

    def updated(job: JobSnapshot, left_out: int) -> None:
        nonlocal before
        on_update(job)
        if left_out > before:
            _tell_left_out(left_out)
        before = left_out

    read = followed(
        cluster,
        lambda: fetch(cluster, key),
        choose,
        wanted,
        most,
        gone=NoSuchJobError,
        window_seconds=_HELD_SECONDS if folds else 0,
        on_update=updated,
    )
    async with contextlib.aclosing(read):
        async for job, lines in read:
            _print(job, lines, only, folds=folds)


def _tell_left_out(count: int) -> None:
    if count > 0:
        said = f"The logs of {counted(count, 'more pod')} are left out"
        click.echo(f"{said}: choose with --rank, or raise --max-pods.", err=True)


def _print(job: JobSnapshot, lines: Sequence[Line], only: Collection[int], *, folds: bool) -> None:
    last = ranks.world_size(job.parsed.spec) - 1 if job.parsed else job.replicas - 1
    several = job.parsed is not None and ranks.local_world_size(job.parsed.spec, 0) > 1
    width = len(str(last)) * (1 + several) + several
    said = [
        (_speaker(job, line), (clean_output(line.text, _MOST_CHARACTERS), line.note))
        for line in lines
        if line.may_be_of(only)
    ]
    for (text, note), speakers in fold(said) if folds else [(what, [who]) for who, what in said]:
        who = spans(speakers)
        if len(speakers) > 1:
            who = f"[{who} x{len(speakers)}]"
        click.echo(f"{who:>{width}} {'!' if note else '|'} {text}", err=note)


def _speaker(job: JobSnapshot, line: Line) -> range:
    """Return the ranks that may have printed a line: the rank that it names, or its pod's."""
    if line.rank is not None:
        return range(line.rank, line.rank + 1)
    index = line.pod.identity.index
    return ranks.ranks(job.parsed.spec, index) if job.parsed else range(index, index + 1)
