"""Shared by the commands that change a job: state the effect, confirm, apply."""

from collections.abc import Callable
from datetime import UTC, datetime

import click
from ddp_operator.ports import Key

from ddp_client.cli import app, output
from ddp_client.cli.app import CommandT, job_argument, on_job
from ddp_client.remote.cluster import Cluster
from ddp_client.views.changes import Change
from ddp_client.views.job.snapshot import JobSnapshot


def changing(command: CommandT) -> CommandT:
    """Give a command the job's name, `--yes` and the connection options."""
    yes = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
    return job_argument(yes(command))


def apply(name: str, plan: Callable[[JobSnapshot, datetime], Change], *, yes: bool) -> None:
    """Print what a change will do, ask for confirmation unless `yes`, and make the change."""

    async def prepare(cluster: Cluster, key: Key) -> tuple[JobSnapshot, Change]:
        job = JobSnapshot.read(await cluster.job(key))
        return job, plan(job, datetime.now(UTC))

    async def act(cluster: Cluster, key: Key) -> None:
        if change.patch:
            await cluster.patch(key, job.uid, change.patch)
        else:
            await cluster.delete(key, job.uid)

    job, change = on_job(name, prepare)
    for line in change.says:
        click.echo(line, err=True)
    if not yes:
        confirm()
    on_job(name, act)
    click.echo(f"{output.named(job.manifest)} {change.done}")


def confirm() -> None:
    """Ask a person whether to continue.

    Raises:
        click.ClickException: the answer is no, or standard input is no terminal.
    """
    if not app.may_ask():
        raise click.UsageError("no terminal for a confirmation, nothing was changed; add --yes")
    if not click.confirm("Continue?", err=True):
        raise click.ClickException("nothing was changed")
