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
from ddp_operator.views.job.diagnosis import diagnose


@click.command()
@connection_options
@job_argument
def why(name: str) -> None:
    """Explain the state of a job, and what to do next."""
    job, pods = on_cluster(lambda cluster, namespace: fetch(cluster, job_key(namespace, name)))
    print_lines(diagnose(job, pods, datetime.now(UTC)).lines(width()))
