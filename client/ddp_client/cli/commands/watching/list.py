"""`list --watch`: a table that updates, or in a pipe a line for each change."""

import asyncio
import shutil
from datetime import UTC, datetime

import click
from ddp_operator.api.values.text import clean, columns
from ddp_operator.ports import Key, UnavailableError

from ddp_client.cli import app
from ddp_client.cli.commands.watching.job import draw
from ddp_client.remote.cluster import PATIENCE_SECONDS, Cluster
from ddp_client.remote.pacing import LIST_SECONDS, pause
from ddp_client.views import listing
from ddp_client.views.job.screen import change
from ddp_client.views.job.snapshot import JobSnapshot


async def watch_list(cluster: Cluster, namespace: str | None, *, wide: bool) -> None:
    """Show the jobs of one namespace, or of all, until interrupted. Each update is a list request.

    Raises:
        UnavailableError: the first list failed, or no list succeeded for ten minutes.
    """
    clock = asyncio.get_running_loop().time
    told: dict[Key, str] | None = None
    terminal, reached = app.is_terminal(), clock()
    if terminal:
        click.clear()
    while True:
        began = clock()
        try:
            # Nothing is shown before all pages have arrived, and only the lines are kept.
            now, rows, said = datetime.now(UTC), [], dict[Key, str]()
            async for item in cluster.jobs(namespace):
                job = JobSnapshot.read(item)
                if terminal:
                    rows.append(listing.row(job, now, wide=wide, namespaces=namespace is None))
                else:
                    said[job.key] = change(job)
            reached = clock()
        except UnavailableError:
            if told is None or clock() - reached > PATIENCE_SECONDS:
                raise
        else:
            if terminal:
                _draw([listing.heading(wide=wide, namespaces=namespace is None), *rows])
            else:
                _tell(said, told or {}, now, namespaces=namespace is None)
            told = said
        await asyncio.sleep(pause(LIST_SECONDS, took=clock() - began))


def _draw(rows: list[listing.Row]) -> None:
    """Draw as many rows as fit on the terminal."""
    room = max(shutil.get_terminal_size((80, 24)).lines - 2, 1)
    lines = columns(rows[: room + 1])
    if len(rows) > room + 1:
        lines[-1] = f"and {len(rows) - room} more"
    draw(lines)


def _tell(said: dict[Key, str], before: dict[Key, str], now: datetime, *, namespaces: bool) -> None:
    for key in (*said, *(before.keys() - said.keys())):
        line = said.get(key, "gone")
        if line != before.get(key):
            name = f"{key.namespace}/{key.name}" if namespaces else key.name
            click.echo(f"{now:%H:%M:%S} {clean(name)} {line}")
