"""The command `gpus`."""

import click
from ddp_operator.ports import Manifest

from ddp_client.cli.app import connection_options, on_cluster, print_lines
from ddp_client.remote.cluster import Cluster
from ddp_client.views.gpus import stocks, table


@click.command()
@connection_options
def gpus() -> None:
    """List the cluster's GPUs: which exist, and how many are free.

    Free GPUs are those that no pod of any namespace requests. ON ONE NODE is the most that one pod
    can get now. Nodes that a cluster creates on demand are not listed.
    """

    async def read(cluster: Cluster, _: str) -> tuple[list[Manifest] | None, list[Manifest] | None]:
        return await cluster.nodes(), await cluster.gpu_pods()

    nodes, pods = on_cluster(read)
    if nodes is None:
        raise click.ClickException("you may not list nodes: ask an administrator for the right")
    kinds = stocks(nodes, pods)
    if not kinds:
        click.echo("No node offers GPUs now.", err=True)
        return
    print_lines(table(kinds, known=pods is not None))
    if pods is None:
        click.echo("Free GPUs are unknown: you may not list the pods of all namespaces.", err=True)
