"""The command `result`."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click
from ddp_operator.api.values.text import clean

from ddp_client.cli.app import job_argument, on_job, print_lines, width
from ddp_client.report.files import UnreadableError, read_metrics
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.result import Result


@click.command()
@job_argument
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="Print an object.")
@click.option(
    "--metrics",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="The trainer's metrics.jsonl, or the checkpoint directory with it, for a curve of all "
    "logged steps; the job itself keeps up to 128.",
)
def result(name: str, form: str | None, metrics: Path | None) -> None:
    """Show the last loss, the scores, the curve and the checkpoint of a job.

    The job keeps them, so they are there when its pods are gone.
    """
    try:
        rows = read_metrics(metrics).curve() if metrics else None
    except UnreadableError as error:
        raise click.ClickException(clean(error)) from None
    item = on_job(name, lambda cluster, key: cluster.job(key))
    answer = Result.of(JobSnapshot.read(item), rows)
    if form:
        click.echo(json.dumps(answer.as_dict(), indent=2, allow_nan=False))
    else:
        print_lines(answer.lines(datetime.now(UTC), width()))
