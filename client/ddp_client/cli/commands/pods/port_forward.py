"""The command `port-forward`."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import Final

import click
from ddp_operator.api.values.text import clean
from ddp_operator.ports import ClusterError, Key

from ddp_client.cli.app import job_argument, on_job
from ddp_client.cli.commands.pods.selection import rank_option, running_pod
from ddp_client.remote.channels import Port, open_port
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.views.refused import RefusedError

_PORTS: Final = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")
_CONNECTIONS: Final = 32
_PIECE: Final = 32 * 1024
_ANSWER_SECONDS: Final = 30.0
"""Time for the rest of a pod's answer after the local side has closed."""


@dataclass(frozen=True)
class PortPair:
    """A local port and a pod's port."""

    local: int
    """0: any free port."""
    remote: int

    @classmethod
    def parse(cls, text: str) -> "PortPair":
        """Read kubectl's `LOCAL:REMOTE`, `REMOTE` and `:REMOTE`."""
        match = _PORTS.fullmatch(text)
        local = remote = -1
        if match:
            remote = int(match[2])
            local = remote if match[1] is None else int(match[1] or 0)
        if not (0 <= local < 65536 and 0 < remote < 65536):
            raise click.UsageError(f"invalid port {clean(text, 40)!r}: use LOCAL:REMOTE")
        return cls(local, remote)


@click.command("port-forward")
@job_argument
@rank_option
@click.argument("ports", nargs=-1, required=True, metavar="LOCAL:REMOTE...")
def port_forward(name: str, rank: int, ports: tuple[str, ...]) -> None:
    """Forward ports of 127.0.0.1 to a rank's pod, until Ctrl-C.

    A new connection goes to the pod that has the rank at that time, also after a restart.
    """
    wanted = [PortPair.parse(text) for text in ports]

    async def act(cluster: Cluster, key: Key) -> None:
        await running_pod(cluster, key, rank)
        slots = asyncio.Semaphore(_CONNECTIONS)
        async with contextlib.AsyncExitStack() as stack:
            for pair in wanted:

                async def serve(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    port: int = pair.remote,
                ) -> None:
                    async with slots:
                        await _connect(cluster, key, rank, port, reader, writer)

                try:
                    server = await asyncio.start_server(serve, "127.0.0.1", pair.local)
                except OSError as error:
                    raise RefusedError(f"cannot listen on port {pair.local}: {error}") from None
                await stack.enter_async_context(server)
                local = server.sockets[0].getsockname()[1]
                click.echo(f"127.0.0.1:{local} -> port {pair.remote} of rank {rank}'s pod")
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        on_job(name, act)


async def _connect(
    cluster: Cluster,
    key: Key,
    rank: int,
    number: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry one connection; an error ends only this connection."""
    try:
        pod = await running_pod(cluster, key, rank)
        async with open_port(cluster.client, pod.key, number) as port:
            sending = asyncio.create_task(_send(reader, port))
            receiving = asyncio.create_task(_receive(port, writer))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
                # The protocol has no half-close: the pod does not learn that the input has ended.
                await asyncio.wait_for(receiving, _ANSWER_SECONDS)
            finally:
                sending.cancel()
                receiving.cancel()
    except (ClusterError, RefusedError, NoSuchJobError) as error:
        click.echo(clean(error, 512), err=True)
    except (OSError, TimeoutError):
        pass  # the local side has closed
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
