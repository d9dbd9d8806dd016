"""The command `list`."""

import contextlib
from datetime import UTC, datetime

import click
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest

from ddp_client.cli import output
from ddp_client.cli.app import connection_options, on_cluster, print_lines
from ddp_client.cli.commands.watching.list import watch_list
from ddp_client.remote.cluster import Cluster
from ddp_client.text import columns
from ddp_client.views import listing
from ddp_client.views.job.snapshot import JobSnapshot


@click.command("list")
@connection_options
@click.option("-A", "--all-namespaces", is_flag=True, help="List the jobs of all namespaces.")
@click.option("-o", "--output", "form", type=click.Choice(["wide", "name", "json", "yaml"]))
@click.option(
    "-w", "--watch", is_flag=True, help="Update the list until Ctrl-C; in a pipe, print changes."
)
def list_jobs(all_namespaces: bool, form: str | None, watch: bool) -> None:
    """List the jobs of a namespace, or of all namespaces."""
    if watch:
        if form not in (None, "wide"):
            raise click.UsageError(
                f"--watch cannot be used with --output {form}; use kubectl get ddp -w"
            )

        async def show(cluster: Cluster, namespace: str) -> None:
            where = None if all_namespaces else namespace
            await watch_list(cluster, where, wide=form == "wide")

        with contextlib.suppress(KeyboardInterrupt):
            on_cluster(show)
        return

    async def read(
        cluster: Cluster, namespace: str
    ) -> tuple[str, list[Manifest], list[listing.Row]]:
        now, wide = datetime.now(UTC), form == "wide"
        items: list[Manifest] = []
        rows: list[listing.Row] = []
        async for item in cluster.jobs(None if all_namespaces else namespace):
            if form in (None, "wide"):  # a row takes a thousandth of a job's memory
                job = JobSnapshot.read(item)
                rows.append(listing.row(job, now, wide=wide, namespaces=all_namespaces))
            else:
                items.append(item)
        return namespace, items, rows

    namespace, items, rows = on_cluster(read)
    if form in ("name", "json", "yaml"):
        if items or form != "name":
            click.echo(output.listed(items, form))
    elif rows:
        head = listing.heading(wide=form == "wide", namespaces=all_namespaces)
        print_lines(columns([head, *rows]))
    else:
        where = "in any namespace" if all_namespaces else f"in namespace {clean(namespace)}"
        click.echo(f"There are no DDPJobs {where}.", err=True)
