"""`status --watch`: a screen that updates, or in a pipe a line for each change."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Final

import click
from ddp_operator.ports import Key, UnavailableError

from ddp_client.cli import app
from ddp_client.cli.commands.watching.live import Draw, drawing
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.remote.queues import queue_state
from ddp_client.views.curve import Losses
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.queueing import UNKNOWN
from ddp_client.views.job.screen import change, screen
from ddp_client.views.job.snapshot import JobSnapshot

TICK_SECONDS: Final = 1.0
"""Seconds between two drawings of the screen while only the time changes."""
_PODS_SECONDS: Final = 2.0
"""Least seconds between two reads of the pods, which happen only after changes of the job."""
_QUEUE_SECONDS: Final = 10.0
"""Seconds between two questions to Kueue while the job does not change."""


async def watch_job(cluster: Cluster, key: Key) -> None:
    """Show a job until it has ended or is gone.

    Needs one watch, and a read of the pods after each change of the job.

    Raises:
        NoSuchJobError: the job does not exist.
    """
    if app.is_terminal():
        with drawing() as draw:
            await _draw(cluster, key, draw)
    else:
        await _print_changes(cluster, key)


async def _print_changes(cluster: Cluster, key: Key) -> None:
    last, first = "", True
    async with contextlib.aclosing(cluster.changes(key)) as changes:
        async for manifest in changes:
            if manifest is None and first:
                raise NoSuchJobError(key)
            first = False
            job = JobSnapshot.read(manifest) if manifest else None
            line = change(job) if job else "gone"
            if line != last:
                click.echo(f"{datetime.now(UTC):%H:%M:%S} {line}")
            last = line
            if job is None or job.status.finished:
                return


class _Latest:
    """The latest state of the job; None before the first, or when the job is gone."""

    def __init__(self) -> None:
        self.job: JobSnapshot | None = None
        self.losses = Losses()
        self.is_over = False

    async def follow(self, cluster: Cluster, key: Key) -> None:
        async with contextlib.aclosing(cluster.changes(key)) as changes:
            async for manifest in changes:
                if manifest is None:
                    break
                self.job = job = JobSnapshot.read(manifest)
                if progress := job.status.progress:
                    self.losses.add(progress.step, progress.loss)
                if job.status.finished:
                    break
        self.is_over = True


async def _draw(cluster: Cluster, key: Key, draw: Draw) -> None:
    latest = _Latest()
    following = asyncio.create_task(latest.follow(cluster, key))
    clock = asyncio.get_running_loop().time
    shown: JobSnapshot | None = None
    pods, looked = None, -_PODS_SECONDS
    queue, queue_time = UNKNOWN, -_QUEUE_SECONDS
    try:
        while True:
            over = latest.is_over
            job = latest.job
            if job is not None:
                now = datetime.now(UTC)
                is_news = job is not shown and (over or clock() - looked >= _PODS_SECONDS)
                if is_news or clock() - queue_time >= _QUEUE_SECONDS:
                    queue, queue_time = await queue_state(cluster, job), clock()
                if is_news:
                    with contextlib.suppress(UnavailableError):
                        pods = Pods.of(job, await cluster.pods(key))
                        shown, looked = job, clock()
                there = pods or Pods.of(job, [])
                curve = latest.losses.line()
                draw(screen(job, there, now, width=app.width(), losses=curve, queue=queue))
            if following.done():
                following.result()
                if job is None:
                    raise NoSuchJobError(key)
                if over:
                    return
            await asyncio.wait((following,), timeout=TICK_SECONDS)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
