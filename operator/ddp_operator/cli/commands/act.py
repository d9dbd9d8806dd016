"""Commands that change a job: each says what becomes of its pods before it asks."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.cli import app, output
from ddp_operator.cli.app import connection_options, job_argument, job_key, on_cluster
from ddp_operator.client.cluster import Cluster
from ddp_operator.views import changes
from ddp_operator.views.changes import Change
from ddp_operator.views.job.snapshot import JobSnapshot

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _changing(command: CommandT) -> CommandT:
    yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    return connection_options(job_argument(yes(command)))


@click.command()
@_changing
def stop(name: str, yes: bool) -> None:
    """Give up a job's pods and keep its state (spec.suspend)."""
    _carry_out(name, changes.stop, yes=yes)


@click.command()
@_changing
def resume(name: str, yes: bool) -> None:
    """Go on with a job that was stopped."""
    _carry_out(name, changes.resume, yes=yes)


@click.command()
@_changing
def restart(name: str, yes: bool) -> None:
    """Start all pods of a job anew, from its checkpoint; not charged."""
    _carry_out(name, changes.restart, yes=yes)


@click.command()
@_changing
@click.option(
    "--replicas", type=click.IntRange(1, MAX_REPLICAS), required=True, help="How many pods."
)
def scale(name: str, replicas: int, yes: bool) -> None:
    """Change spec.replicas of a job that is stopped, is elastic or has not run yet."""
    _carry_out(name, lambda job, _: changes.scale(job, replicas), yes=yes)


@click.command()
@_changing
def delete(name: str, yes: bool) -> None:
    """Delete a job and its pods."""
    _carry_out(name, changes.delete, yes=yes)


def _carry_out(name: str, plan: Callable[[JobSnapshot, datetime], Change], *, yes: bool) -> None:
    async def look(cluster: Cluster, namespace: str) -> tuple[JobSnapshot, Change]:
        job = JobSnapshot.read(await cluster.job(job_key(namespace, name)))
        return job, plan(job, datetime.now(UTC))

    async def act(cluster: Cluster, _: str) -> None:
        if change.patch:
            await cluster.patch(job.key, job.uid, change.patch)
        else:
            await cluster.delete(job.key, job.uid)

    job, change = on_cluster(look)
    for line in change.says:
        click.echo(line, err=True)
    if not yes:
        ask()
    on_cluster(act)
    click.echo(f"{output.named(job.manifest)} {change.done}")


def ask() -> None:
    """Let a person say whether to go on.

    Raises:
        click.ClickException: not so, or there is nobody.
    """
    if not app.may_ask():
        raise click.UsageError("there is no terminal to ask on; nothing was changed: add --yes")
    if not click.confirm("Go on?", err=True):
        raise click.ClickException("nothing was changed")
