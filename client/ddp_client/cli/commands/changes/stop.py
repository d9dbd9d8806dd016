"""The command `stop`."""

import click

from ddp_client.cli.commands.changes.change import apply, changing
from ddp_client.views import changes


@click.command()
@changing
def stop(name: str, yes: bool) -> None:
    """Delete a job's pods and keep the job, to resume it later (spec.suspend)."""
    apply(name, changes.stop, yes=yes)
