"""The command `why`."""

from datetime import UTC, datetime

import click

from ddp_operator.cli.app import (
    connection_options,
    fetch,
    job_argument,
    job_key,
    on_cluster,
    print_lines,
    width,
)
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import queue_state
from ddp_operator.views.job.diagnosis import Diagnosis, diagnose


@click.command()
@connection_options
@job_argument
def why(name: str) -> None:
    """Explain the state of a job, and what to do next."""
    now = datetime.now(UTC)

    async def read(cluster: Cluster, namespace: str) -> Diagnosis:
        job, pods = await fetch(cluster, job_key(namespace, name))
        return diagnose(job, pods, now, queue=await queue_state(cluster, job, now))

    print_lines(on_cluster(read).lines(width()))
