"""The command `why`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from ddp_operator.cli.app import (
    connection_options,
    fetch,
    job_key,
    on_cluster,
    optional_job_argument,
    print_lines,
    width,
)
from ddp_operator.cli.commands.pods.hang import look
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import queue_state
from ddp_operator.client.traces import TracesError, read_traces
from ddp_operator.views import traces as views
from ddp_operator.views.job.diagnosis import Diagnosis, diagnose
from ddp_operator.views.text import clean


@click.command()
@connection_options
@optional_job_argument
@click.option(
    "--traces",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Name the rank that a hanging job waits for, from a directory with a dump of torch's "
    "flight recorder for each rank; no cluster is used.",
)
@click.option(
    "--hang",
    is_flag=True,
    help="Ask all ranks of a running job where they are, and name the one that the others wait "
    "for; needs the right to create pods/exec.",
)
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="Print an object.")
def why(name: str | None, directory: Path | None, form: str | None, *, hang: bool) -> None:
    """Explain the state of a job, and what to do next."""
    if directory is not None:
        if name is not None or hang:
            raise click.UsageError("give NAME or --traces, not both")
        _explain_traces(directory, form)
        return
    if name is None:
        raise click.UsageError("give NAME, or --traces DIR")
    if hang:
        _explain_hang(name, form)
        return
    now = datetime.now(UTC)

    async def read(cluster: Cluster, namespace: str) -> Diagnosis:
        job, pods = await fetch(cluster, job_key(namespace, name))
        return diagnose(job, pods, now, queue=await queue_state(cluster, job, now))

    found = on_cluster(read)
    _print(asdict(found), found.lines, form)


def _explain_hang(name: str, form: str | None) -> None:
    found = on_cluster(partial(look, name=name))
    _print(found.to_json(), found.lines, form)


def _explain_traces(directory: Path, form: str | None) -> None:
    try:
        found = read_traces(directory)
    except TracesError as error:
        raise click.ClickException(clean(error)) from None
    verdict = views.analyse(found.dumps)
    lines = views.diagnosis(verdict, found.unreadable).lines
    _print(views.as_dict(verdict, found.unreadable), lines, form)


def _print(found: Mapping[str, Any], lines: Callable[[int], list[str]], form: str | None) -> None:
    """Print an answer as JSON if that is asked for, otherwise as lines for this terminal."""
    if form:
        click.echo(json.dumps(found, indent=2))
    else:
        print_lines(lines(width()))
