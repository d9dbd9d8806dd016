"""`list --watch`: a table that updates, or in a pipe a line for each change."""

import asyncio
import contextlib
import shutil
from datetime import UTC, datetime

import click
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key, UnavailableError

from ddp_client.cli import app
from ddp_client.cli.commands.watching.live import Draw, drawing
from ddp_client.remote.cluster import PATIENCE_SECONDS, Cluster
from ddp_client.remote.pacing import LIST_SECONDS, pause
from ddp_client.text import columns
from ddp_client.views import listing
from ddp_client.views.job.screen import change
from ddp_client.views.job.snapshot import JobSnapshot


async def watch_list(cluster: Cluster, namespace: str | None, *, wide: bool) -> None:
    """Show the jobs of one namespace, or of all, until interrupted. Each update is a list request.

    Raises:
        UnavailableError: the first list failed, or no list succeeded for ten minutes.
    """
    with drawing() if app.is_terminal() else contextlib.nullcontext() as draw:
        await _watch(cluster, namespace, draw, wide=wide)


async def _watch(cluster: Cluster, namespace: str | None, draw: Draw | None, *, wide: bool) -> None:
    clock = asyncio.get_running_loop().time
    before: dict[Key, str] | None = None
    reached = clock()
    while True:
        began = clock()
        try:
            # Nothing is shown before all pages have arrived, and only the lines are kept.
            now, rows, lines = datetime.now(UTC), [], dict[Key, str]()
            async for item in cluster.jobs(namespace):
                job = JobSnapshot.read(item)
                if draw:
                    rows.append(listing.row(job, now, wide=wide, namespaces=namespace is None))
                else:
                    lines[job.key] = change(job)
            reached = clock()
        except UnavailableError:
            if before is None or clock() - reached > PATIENCE_SECONDS:
                raise
        else:
            if draw:
                draw(_fitting([listing.heading(wide=wide, namespaces=namespace is None), *rows]))
            else:
                _tell(lines, before or {}, now, namespaces=namespace is None)
            before = lines
        await asyncio.sleep(pause(LIST_SECONDS, took=clock() - began))


def _fitting(rows: list[listing.Row]) -> list[str]:
    """Return lines of as many rows as fit on the terminal."""
    room = max(shutil.get_terminal_size((80, 24)).lines - 2, 1)
    lines = columns(rows[: room + 1])
    if len(rows) > room + 1:
        lines[-1] = f"and {len(rows) - room} more"
    return lines


def _tell(
    lines: dict[Key, str], before: dict[Key, str], now: datetime, *, namespaces: bool
) -> None:
    for key in (*lines, *(before.keys() - lines.keys())):
        line = lines.get(key, "gone")
        if line != before.get(key):
            name = f"{key.namespace}/{key.name}" if namespaces else key.name
            click.echo(f"{now:%H:%M:%S} {clean(name)} {line}")
