"""The command `resume`."""

import click

from ddp_client.cli.commands.changes.change import apply, changing
from ddp_client.views import changes


@click.command()
@changing
def resume(name: str, yes: bool) -> None:
    """Continue a job that was stopped."""
    apply(name, changes.resume, yes=yes)
