"""The command `status`."""

import contextlib
from datetime import UTC, datetime

import click
from ddp_operator.ports import Key

from ddp_client.cli import output
from ddp_client.cli.app import fetch, job_argument, on_job, print_lines, width
from ddp_client.cli.commands.watching.job import watch_job
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.queueing import QueueState
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot


@click.command()
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
            on_job(name, watch_job)
        return
    if form:
        click.echo(output.single(on_job(name, Cluster.job), form))
        return

    now = datetime.now(UTC)

    async def read(cluster: Cluster, key: Key) -> tuple[JobSnapshot, Pods, QueueState]:
        job, pods = await fetch(cluster, key)
        return job, pods, await queue_state(cluster, job)

    job, pods, queue = on_job(name, read)
    print_lines(screen(job, pods, now, width=width(), queue=queue))
