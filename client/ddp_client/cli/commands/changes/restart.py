"""The command `restart`."""

import click

from ddp_client.cli.commands.changes.change import apply, changing
from ddp_client.views import changes


@click.command()
@changing
def restart(name: str, yes: bool) -> None:
    """Restart all pods of a job from its checkpoint.

    This does not count towards spec.restart.maxRestarts.
    """
    apply(name, changes.restart, yes=yes)
