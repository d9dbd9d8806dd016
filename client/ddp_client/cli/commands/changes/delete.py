"""The command `delete`."""

import click

from ddp_client.cli.commands.changes.change import apply, changing
from ddp_client.views import changes


@click.command()
@changing
def delete(name: str, yes: bool) -> None:
    """Delete a job and its pods."""
    apply(name, changes.delete, yes=yes)
