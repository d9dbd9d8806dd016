"""The command `scale`."""

import click
from ddp_operator.api.constants import MAX_REPLICAS

from ddp_client.cli.commands.changes.change import apply, changing
from ddp_client.views import changes


@click.command()
@changing
@click.option(
    "--replicas", type=click.IntRange(1, MAX_REPLICAS), required=True, help="Number of pods."
)
def scale(name: str, replicas: int, yes: bool) -> None:
    """Change the number of pods (spec.replicas).

    The job must be stopped or elastic, or must not have run yet.
    """
    apply(name, lambda job, _: changes.scale(job, replicas), yes=yes)
