"""Commands that only look: list, status, why, wait."""

import asyncio
import contextlib
import math
import re
from datetime import UTC, datetime
from typing import Final

import click

from ddp_operator.cli import output
from ddp_operator.cli.app import (
    connection_options,
    job_argument,
    job_key,
    on_cluster,
    print_lines,
    width,
)
from ddp_operator.cli.commands.watching import watched
from ddp_operator.cli.commands.watching_list import watched_list
from ddp_operator.client.cluster import Cluster, NoSuchJobError
from ddp_operator.client.queues import place_in_queue
from ddp_operator.ports import Key, Manifest, UnavailableError
from ddp_operator.views import listing, waiting
from ddp_operator.views.job.diagnosis import diagnose
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.screen import screen
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean, columns

POLL_SECONDS: Final = 2.0
"""Between two looks of `wait`: one small read."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}


def read_duration(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Seconds of such as `90s`, `5m` or `1h30m`; a plain number is seconds."""
    if value is None:
        return None
    parts = [*_DURATION.finditer(value)]
    if not parts or "".join(part[0] for part in parts) != value:
        raise click.BadParameter(f"{clean(value, 40)!r}: say it as 90s, 5m or 1h30m", param=option)
    return math.fsum(float(part[1]) * _SECONDS[part[2]] for part in parts)


async def fetch(cluster: Cluster, key: Key) -> tuple[JobSnapshot, Pods]:
    """Return a job and its pods."""
    manifest, pods = await asyncio.gather(cluster.job(key), cluster.pods(key))
    job = JobSnapshot.read(manifest)
    return job, Pods.of(job, pods)


@click.command("list")
@connection_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("-o", "--output", "form", type=click.Choice(["wide", "name", "json", "yaml"]))
@click.option("-w", "--watch", is_flag=True, help="Go on until Ctrl-C; in a pipe by lines.")
def list_jobs(all_namespaces: bool, form: str | None, watch: bool) -> None:
    """Show the jobs of a namespace, or of all."""
    if watch:
        if form not in (None, "wide"):
            raise click.UsageError(f"--watch: goes without --output {form}; kubectl get -w has it")

        async def show(cluster: Cluster, namespace: str) -> None:
            where = None if all_namespaces else namespace
            await watched_list(cluster, where, wide=form == "wide")

        with contextlib.suppress(KeyboardInterrupt):
            on_cluster(show)
        return

    async def read(
        cluster: Cluster, namespace: str
    ) -> tuple[str, list[Manifest], list[listing.Row]]:
        now, wide = datetime.now(UTC), form == "wide"
        items: list[Manifest] = []
        rows: list[listing.Row] = []
        async for item in cluster.jobs(None if all_namespaces else namespace):
            if form in (None, "wide"):  # a row is a thousandth of a job
                job = JobSnapshot.read(item)
                rows.append(listing.row(job, now, wide=wide, namespaces=all_namespaces))
            else:
                items.append(item)
        return namespace, items, rows

    namespace, items, rows = on_cluster(read)
    if form in ("name", "json", "yaml"):
        if items or form != "name":
            click.echo(output.listed(items, form))
    elif rows:
        head = listing.heading(wide=form == "wide", namespaces=all_namespaces)
        print_lines(columns([head, *rows]))
    else:
        where = "in any namespace" if all_namespaces else f"in namespace {clean(namespace)}"
        click.echo(f"There are no DDPJobs {where}.", err=True)


@click.command()
@connection_options
@job_argument
@click.option("-o", "--output", "form", type=click.Choice(["name", "json", "yaml"]))
@click.option("-w", "--watch", is_flag=True, help="Go on until the job ends; in a pipe by lines.")
def status(name: str, form: str | None, watch: bool) -> None:
    """Show one job on one screen.

    A letter stands for each pod, in the order of ranks: R ready, D done, s starting, w waiting for
    a node, ! cannot start, E told to end, F failed, . not there.
    """
    if form and watch:
        raise click.UsageError("--watch: goes without --output; kubectl get -w watches objects")
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            on_cluster(lambda cluster, namespace: watched(cluster, job_key(namespace, name)))
        return
    if form:
        item = on_cluster(lambda cluster, namespace: cluster.job(job_key(namespace, name)))
        click.echo(output.single(item, form))
        return

    async def look(cluster: Cluster, namespace: str) -> tuple[JobSnapshot, Pods, str]:
        job, pods = await fetch(cluster, job_key(namespace, name))
        return job, pods, await place_in_queue(cluster, job)

    job, pods, place = on_cluster(look)
    print_lines(screen(job, pods, datetime.now(UTC), width=width(), place=place))


@click.command()
@connection_options
@job_argument
def why(name: str) -> None:
    """Say why a job is as it is, and what to do."""
    job, pods = on_cluster(lambda cluster, namespace: fetch(cluster, job_key(namespace, name)))
    print_lines(diagnose(job, pods, datetime.now(UTC)).lines(width()))


@click.command()
@connection_options
@job_argument
@click.option(
    "--for", "goal", type=click.Choice(waiting.GOALS), default="succeeded", show_default=True
)
@click.option("--timeout", callback=read_duration, metavar="DURATION", help="Default: no end.")
@click.pass_context
def wait(context: click.Context, name: str, goal: waiting.Goal, timeout: float | None) -> None:
    """Wait until a job is in a state.

    \b
    Exit codes: 0    it is
                1    the cluster could not be asked
                2    wrong usage
                3    it cannot be any more: the job ended otherwise, or is gone
                124  the time is over
    """

    async def watch(cluster: Cluster, namespace: str) -> int:
        return await until(cluster, job_key(namespace, name), goal, timeout)

    context.exit(on_cluster(watch))


async def until(cluster: Cluster, key: Key, goal: waiting.Goal, timeout: float | None) -> int:
    """Look again and again; a server that is away for a while only takes time."""
    clock = asyncio.get_running_loop().time
    end = math.inf if timeout is None else clock() + timeout
    first, uid = True, ""
    last = "not seen yet"
    while True:
        try:
            job: JobSnapshot | None = JobSnapshot.read(await cluster.job(key))
        except NoSuchJobError:
            if first and goal != "deleted":
                raise
            job = None
        except UnavailableError:
            if first or clock() >= end:
                raise
            await asyncio.sleep(min(POLL_SECONDS, max(end - clock(), 0)))
            continue
        if job is not None and uid and job.uid != uid:
            job = None  # another one has taken the name
        first, uid = False, job.uid if job else uid
        code = waiting.verdict(goal, job)
        last = f"{job.status.phase} ({clean(job.status.reason, 64)})" if job else "gone"
        if code is not None:
            click.echo(f"{clean(key.name)} is {last}", err=code != waiting.REACHED)
            return code
        if clock() >= end:
            click.echo(f"{clean(key.name)} is still {last}, not {goal}", err=True)
            return waiting.TIMED_OUT
        await asyncio.sleep(min(POLL_SECONDS, max(end - clock(), 0)))
