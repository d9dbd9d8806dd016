"""The command `logs`."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final

import click
from ddp_operator.api import ranks
from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import fetch, job_argument, on_job, read_duration
from ddp_client.cli.commands.pods.selection import ranks_option
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.remote.following import MOST_HELD, followed
from ddp_client.remote.logs import Line, Wanted, printed
from ddp_client.text import clean_output
from ddp_client.views.folding import fold, spans
from ddp_client.views.job.last_words import log_lines
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
@job_argument
@ranks_option("Only this rank's pod; lines that name another rank are left out. Repeatable.")
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
    "--attempt",
    type=click.IntRange(0),
    metavar="N",
    help="An earlier attempt. Of failed pods that are gone, the job keeps the last lines.",
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
    attempt: int | None,
    since: float | None,
    max_pods: int,
    fold: bool,
) -> None:
    """Show the logs of all ranks as one stream.

    Each line begins with its rank. Without -f, lines are sorted by time, as far as the nodes'
    clocks agree.
    """
    wanted = Wanted.of(tail, since)
    if follow and attempt is not None:
        raise click.UsageError("--attempt: an earlier attempt does not grow; leave --follow out")

    async def act(cluster: Cluster, key: Key) -> None:
        if attempt is not None:
            await _show_attempt(cluster, key, wanted, frozenset(wanted_ranks), max_pods, attempt)
            return
        show = follow_logs if follow else _show_printed
        await show(cluster, key, wanted, frozenset(wanted_ranks), max_pods, folds=fold)

    on_job(name, act)


async def _show_printed(
    cluster: Cluster, key: Key, wanted: Wanted, only: Collection[int], most: int, *, folds: bool
) -> None:
    job, pods = await fetch(cluster, key)
    chosen = [pod for pod in pods.of_ranks(job, only) if pod.started or pod.exit]
    if not chosen:
        failures = [each for each in job.status.failures if each.action != "Ignore"]
        if job.status.finished:
            click.echo("No pod has a log any more.", err=True)
        else:
            click.echo("No pod has started yet; run kubectl ddp why to see the reason.", err=True)
        _show_kept(job, [each for each in failures if each.attempt == failures[-1].attempt], only)
    _tell_left_out(len(chosen) - most)
    await _show(cluster, job, chosen[:most], wanted, only, folds=folds)


async def _show_attempt(
    cluster: Cluster, key: Key, wanted: Wanted, only: Collection[int], most: int, attempt: int
) -> None:
    """Print the logs of an attempt's pods; of those that are gone, the recorded end."""
    manifest, all_pods = await asyncio.gather(cluster.job(key), cluster.pods(key))
    job = JobSnapshot.read(manifest)
    indexes = job.indexes_of(only)
    pods = [
        pod
        for pod in all_pods
        if pod.owner_uid == job.uid and pod.identity.attempt == attempt
        if (pod.started or pod.exit) and (not only or pod.identity.index in indexes)
    ]
    there = {pod.key.name for pod in pods}
    _tell_left_out(len(pods) - most)
    await _show(cluster, job, pods[:most], wanted, only, folds=True)
    failures = [
        failure
        for failure in job.status.failures
        if failure.attempt == attempt and failure.pod not in there
    ]
    if not _show_kept(job, failures, only) and not pods:
        newest = job.status.attempt
        note = f"Nothing is left of attempt {attempt}; the newest attempt is {newest}."
        click.echo(note, err=True)


def _show_kept(job: JobSnapshot, failures: Sequence[Failure], only: Collection[int]) -> int:
    """Print what the job's status keeps of the logs of failed pods; return of how many pods."""
    indexes, shown = job.indexes_of(only), 0
    for failure in failures:
        is_chosen = failure.index in indexes if failure.rank is None else failure.rank in only
        if only and not is_chosen:
            continue
        shown += 1
        lead = f"Pod {clean(failure.pod)} is gone; these last lines were kept in the job:"
        click.echo(lead, err=True)
        who = spans([_own_ranks(job, failure.index, failure.rank)])
        for text in log_lines(failure.message):
            click.echo(f"{who} | {text}")
    return shown


async def _show(
    cluster: Cluster,
    job: JobSnapshot,
    pods: Sequence[PodState],
    wanted: Wanted,
    only: Collection[int],
    *,
    folds: bool,
) -> None:
    held: list[Line] = []
    async for line in printed(cluster, pods, wanted):
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
        return pods.of_ranks(job, only)

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
        note = f"The logs of {counted(count, 'more pod')} are left out"
        click.echo(f"{note}: choose with --rank, or raise --max-pods.", err=True)


def _print(job: JobSnapshot, lines: Sequence[Line], only: Collection[int], *, folds: bool) -> None:
    last = ranks.world_size(job.parsed.spec) - 1 if job.parsed else job.replicas - 1
    several = job.parsed is not None and ranks.local_world_size(job.parsed.spec, 0) > 1
    width = len(str(last)) * (1 + several) + several
    texts = [
        (_speaker(job, line), (clean_output(line.text, _MOST_CHARACTERS), line.note))
        for line in lines
        if line.may_be_of(only)
    ]
    for (text, note), speakers in fold(texts) if folds else [(what, [who]) for who, what in texts]:
        who = spans(speakers)
        if len(speakers) > 1:
            who = f"[{who} x{len(speakers)}]"
        click.echo(f"{who:>{width}} {'!' if note else '|'} {text}", err=note)


def _speaker(job: JobSnapshot, line: Line) -> range:
    """Return the ranks that may have printed a line: the rank that it names, or its pod's."""
    return _own_ranks(job, line.pod.identity.index, line.rank)


def _own_ranks(job: JobSnapshot, index: int, rank: int | None) -> range:
    """Return one rank if it is known, otherwise all ranks of a pod."""
    if rank is not None:
        return range(rank, rank + 1)
    return job.ranks_of(index)
