"""The job on a cluster: the one that is replaced, and the new one until its end."""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import click
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key

from ddp_client.cli.app import on_cluster
from ddp_client.cli.commands.pods.logs import follow_logs
from ddp_client.cli.commands.wait import wait_until
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.remote.logs import Wanted
from ddp_client.views.changes import delete
from ddp_client.views.job.advice import for_end, for_pull
from ddp_client.views.job.last_words import readable
from ddp_client.views.job.snapshot import JobSnapshot

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def existing(name: str) -> Callable[[Cluster, str], Awaitable[JobSnapshot | None]]:
    """Find the job with this name, and tell what its deletion means."""

    async def find(cluster: Cluster, namespace: str) -> JobSnapshot | None:
        try:
            job = JobSnapshot.read(await cluster.job(Key(namespace, name)))
        except NoSuchJobError:
            return None
        for line in delete(job, datetime.now(UTC)).says:
            click.echo(line, err=True)
        return job

    return find


def deletion(job: JobSnapshot) -> Callable[[Cluster, str], Awaitable[int]]:
    """Delete a job, and wait until it is gone."""

    async def act(cluster: Cluster, _: str) -> int:
        with contextlib.suppress(NoSuchJobError):
            await cluster.delete(job.key, job.uid)
        return await wait_until(cluster, job.key, "deleted", None, uid=job.uid)

    return act


def follow(key: Key, *, quietly: bool, since: int | None = None) -> int:
    """Follow a job to its end; return the command's exit code. `quietly`: without its logs.
    `since`: show no lines that are older, in seconds.
    """
    told = ""

    def on_update(job: JobSnapshot) -> None:
        nonlocal told
        status = job.status
        message = readable(status.message, succeeded=status.phase == "Succeeded")
        said = f"{status.phase}: {clean(message or status.reason)}"
        advice = for_pull(job, datetime.now(UTC)) or for_end(job.status)
        # The reasons of a pull alternate, and their texts grow.
        news = advice.partition(".")[0] or said
        if news != told:
            told = news
            click.echo(f"-- {said.removesuffix(': ')}", err=True)
            if advice:
                click.echo(f"-> {advice}", err=True)

    async def act(cluster: Cluster, _: str) -> int:
        if not quietly:
            await follow_logs(cluster, key, Wanted(since_seconds=since), on_update=on_update)
        return await wait_until(cluster, key, "succeeded", None)

    try:
        return on_cluster(act)
    except KeyboardInterrupt:
        name = clean(key.name)
        click.echo(
            f"\n{name} continues: `kubectl ddp logs -f {name}` shows its logs again, "
            f"`kubectl ddp stop {name}` stops it",
            err=True,
        )
        return _INTERRUPTED
