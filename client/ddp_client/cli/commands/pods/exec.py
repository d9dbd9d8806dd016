"""The command `exec`."""

import sys

import click
from ddp_operator.ports import Key

from ddp_client.cli.app import job_argument, on_job
from ddp_client.cli.commands.pods.selection import rank_option, running_pod
from ddp_client.cli.terminal import join
from ddp_client.remote.channels import open_exec
from ddp_client.remote.cluster import Cluster


@click.command("exec")
@job_argument
@rank_option
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input to the program.")
@click.option("-t", "--tty", is_flag=True, help="Run in a terminal; all keys go to the pod.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def exec_(
    context: click.Context, name: str, rank: int, stdin: bool, tty: bool, command: tuple[str, ...]
) -> None:
    """Run a program in the pod of a rank.

    The exit code is the program's.

    \b
        ddp exec resnet --rank 3 -- nvidia-smi
        ddp exec resnet -it -- bash
    """
    if tty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("--tty: standard input and output are no terminal; leave it out")

    async def act(cluster: Cluster, key: Key) -> int:
        pod = await running_pod(cluster, key, rank)
        async with open_exec(
            cluster.client, pod.key, pod.container, command, stdin=stdin or tty, tty=tty
        ) as program:
            return await join(program, stdin=stdin or tty, terminal=tty)

    context.exit(on_job(name, act))
