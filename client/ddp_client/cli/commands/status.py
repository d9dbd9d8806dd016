"""The command `status`."""

import contextlib
from datetime import UTC, datetime

import click

from ddp_client.cli import output
from ddp_client.cli.app import (
    connection_options,
    fetch,
    job_argument,
    job_key,
    on_cluster,
    print_lines,
    width,
)
from ddp_client.cli.commands.watching.job import watch_job
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.queueing import QueueState
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot


@click.command()
@connection_options
@job_argument
@click.option("-o", "--output", "form", type=click.Choice(["name", "json", "yaml"]))
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Update the screen until the job ends; in a pipe, print changes.",
)
def status(name: str, form: str | None, watch: bool) -> None:
    """Show one job on one screen.

    Each letter is a pod, in the order of ranks: R ready, D done, s starting, w waiting for a node,
    ! cannot start, E ending, F failed, . missing.
    """
    if form and watch:
        raise click.UsageError("--watch cannot be used with --output; use kubectl get ddp -w")
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            on_cluster(lambda cluster, namespace: watch_job(cluster, job_key(namespace, name)))
        return
    if form:
        item = on_cluster(lambda cluster, namespace: cluster.job(job_key(namespace, name)))
        click.echo(output.single(item, form))
        return

    now = datetime.now(UTC)

    async def read(cluster: Cluster, namespace: str) -> tuple[JobSnapshot, Pods, QueueState]:
        job, pods = await fetch(cluster, job_key(namespace, name))
        return job, pods, await queue_state(cluster, job, now)

    job, pods, queue = on_cluster(read)
    print_lines(screen(job, pods, now, width=width(), queue=queue))
