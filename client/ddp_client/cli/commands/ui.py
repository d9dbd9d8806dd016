"""The command `ui`: jobs and their reports in a browser."""

import asyncio
import contextlib
from collections.abc import Mapping

import click
from ddp_operator.ports import Key

from ddp_client.cli.app import on_cluster, optional_job_argument
from ddp_client.cli.commands.results.report import MISSING, price_option
from ddp_client.remote.cluster import Cluster


@click.command()
@optional_job_argument
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of 127.0.0.1; default: a free one.",
)
@price_option
def ui(name: str | None, all_namespaces: bool, port: int, prices: Mapping[str, float]) -> None:
    """Show jobs and their reports in a browser.

    Prints the address of a table of jobs, or of one job's report. The pages update until Ctrl-C.
    Anybody with the address and an account on this machine can read what you may read, but cannot
    change anything.
    """
    try:
        from ddp_client.ui import polling, server  # noqa: PLC0415 - optional dependencies
    except ImportError:
        raise click.ClickException(MISSING) from None

    async def serve(cluster: Cluster, namespace: str) -> None:
        path = server.page_of(Key(namespace, name)) if name else "/"
        poller = polling.Poller(cluster, home=namespace, everywhere=all_namespaces, prices=prices)
        try:
            async with server.serving(poller, port=port) as access:
                # No browser is started: its command line would show the token to other users.
                click.echo(f"serving until Ctrl-C: {access.url(path)}")
                await asyncio.Event().wait()
        except server.PortTakenError as error:
            raise click.ClickException(str(error)) from None

    with contextlib.suppress(KeyboardInterrupt):
        on_cluster(serve)
