"""Commands that reach into a pod: exec, port-forward."""

import asyncio
import contextlib
import re
import sys
from dataclasses import dataclass
from typing import Final

import click

from ddp_operator.cli.app import connection_options, job_argument, job_key, on_cluster
from ddp_operator.cli.commands.look import fetch
from ddp_operator.cli.commands.pods.logs import chosen_pods
from ddp_operator.cli.terminal import join
from ddp_operator.client.cluster import Cluster, NoSuchJobError
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube.channels import Port, open_exec, open_port
from ddp_operator.ports import ClusterError, Key
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.text import clean

_PORTS: Final = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")
_CONNECTIONS: Final = 32
_PIECE: Final = 32 * 1024
_ANSWER_SECONDS: Final = 30.0
"""For the rest of a pod's answer, once nobody here says any more."""

_rank = click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Whose pod."
)


@click.command("exec")
@connection_options
@job_argument
@_rank
@click.option("-i", "--stdin", is_flag=True, help="Pass on what comes on standard input.")
@click.option("-t", "--tty", is_flag=True, help="With a terminal; this one's keys go to the pod.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def exec_(
    context: click.Context, name: str, rank: int, stdin: bool, tty: bool, command: tuple[str, ...]
) -> None:
    """Run a program in the pod of a rank; its exit code is this one's.

    \b
        ddp exec resnet --rank 3 -- nvidia-smi
        ddp exec resnet -it -- bash
    """
    if tty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("--tty: there is no terminal here; leave it out")

    async def act(cluster: Cluster, namespace: str) -> int:
        pod = await running_pod(cluster, job_key(namespace, name), rank)
        async with open_exec(
            cluster.client, pod.key, pod.container, command, stdin=stdin or tty, tty=tty
        ) as program:
            return await join(program, stdin=stdin or tty, terminal=tty)

    context.exit(on_cluster(act))


@dataclass(frozen=True)
class Forwarded:
    """A port here, and one of a pod."""

    here: int
    """0: any that is free."""
    there: int

    @classmethod
    def parse(cls, text: str) -> "Forwarded":
        """Read kubectl's `LOCAL:REMOTE`, `REMOTE` and `:REMOTE`."""
        match = _PORTS.fullmatch(text)
        here = there = -1
        if match:
            there = int(match[2])
            here = there if match[1] is None else int(match[1] or 0)
        if not (0 <= here < 65536 and 0 < there < 65536):
            raise click.UsageError(f"port {clean(text, 40)!r}: say it as LOCAL:REMOTE")
        return cls(here, there)


@click.command("port-forward")
@connection_options
@job_argument
@_rank
@click.argument("ports", nargs=-1, required=True, metavar="LOCAL:REMOTE...")
def port_forward(name: str, rank: int, ports: tuple[str, ...]) -> None:
    """Reach ports of a rank's pod on this machine's loopback, until Ctrl-C.

    Each connection goes to the pod that has the rank then, also after a restart.
    """
    wanted = [Forwarded.parse(text) for text in ports]

    async def act(cluster: Cluster, namespace: str) -> None:
        key = job_key(namespace, name)
        await running_pod(cluster, key, rank)
        slots = asyncio.Semaphore(_CONNECTIONS)
        async with contextlib.AsyncExitStack() as stack:
            for each in wanted:

                async def serve(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    port: int = each.there,
                ) -> None:
                    async with slots:
                        await _connect(cluster, key, rank, port, reader, writer)

                try:
                    server = await asyncio.start_server(serve, "127.0.0.1", each.here)
                except OSError as error:
                    raise RefusedError(f"port {each.here} of this machine: {error}") from None
                await stack.enter_async_context(server)
                here = server.sockets[0].getsockname()[1]
                click.echo(f"127.0.0.1:{here} is port {each.there} of rank {rank}'s pod")
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        on_cluster(act)


async def running_pod(cluster: Cluster, key: Key, rank: int) -> PodState:
    """The pod of a rank, if it runs.

    Raises:
        RefusedError: it does not.
    """
    job, pods = await fetch(cluster, key)
    found = [pod for pod in chosen_pods(job, pods, (rank,)) if pod.started and not pod.exit]
    if not found:
        raise RefusedError(
            f"no pod of rank {rank} runs now: `kubectl ddp status {key.name}` shows them"
        )
    return found[0]


async def _connect(
    cluster: Cluster,
    key: Key,
    rank: int,
    number: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry one connection; what goes wrong ends this one alone."""
    try:
        pod = await running_pod(cluster, key, rank)
        async with open_port(cluster.client, pod.key, number) as port:
            sending = asyncio.create_task(_send(reader, port))
            receiving = asyncio.create_task(_receive(port, writer))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
                # A pod cannot be told that only its answer is waited for.
                await asyncio.wait_for(receiving, _ANSWER_SECONDS)
            finally:
                sending.cancel()
                receiving.cancel()
    except (ClusterError, RefusedError, NoSuchJobError) as error:
        click.echo(clean(error, 512), err=True)
    except (OSError, TimeoutError):
        pass  # the one here has gone
    finally:
        writer.close()


async def _receive(port: Port, writer: asyncio.StreamWriter) -> None:
    async with contextlib.aclosing(port.received()) as received:
        async for content in received:
            writer.write(content)
            await writer.drain()


async def _send(reader: asyncio.StreamReader, port: Port) -> None:
    while content := await reader.read(_PIECE):
        await port.write(content)
