"""The command `wait`."""

import asyncio
import math
from functools import partial
from typing import Final

import click
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key, UnavailableError

from ddp_client.cli.app import job_argument, on_job, read_duration
from ddp_client.remote.cluster import Cluster, NoSuchJobError
from ddp_client.views import waiting
from ddp_client.views.job.snapshot import JobSnapshot

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of the job."""


@click.command()
@job_argument
@click.option(
    "--for", "goal", type=click.Choice(waiting.GOALS), default="succeeded", show_default=True
)
@click.option("--timeout", callback=read_duration, metavar="DURATION", help="Default: no limit.")
@click.pass_context
def wait(context: click.Context, name: str, goal: waiting.Goal, timeout: float | None) -> None:
    """Wait until a job reaches a state.

    \b
    Exit codes: 0    the job is in the state
                1    the cluster did not answer
                2    wrong usage
                3    impossible: the job ended differently or was deleted
                124  timed out
    """

    context.exit(on_job(name, partial(wait_until, goal=goal, timeout=timeout)))


async def wait_until(
    cluster: Cluster, key: Key, goal: waiting.Goal, timeout: float | None, *, uid: str = ""
) -> int:
    """Poll a job until it reaches the goal, cannot reach it any more, or the time is over.

    `uid`: the job that is meant, if it was read before. After the first answer, polling continues
    while the API server is unavailable.

    Returns:
        The exit code of `wait`.
    """
    clock = asyncio.get_running_loop().time
    end = math.inf if timeout is None else clock() + timeout
    first = not uid
    while True:
        try:
            job: JobSnapshot | None = JobSnapshot.read(await cluster.job(key))
        except NoSuchJobError:
            if first and goal != "deleted":
                raise
            job = None
        except UnavailableError:
            if first or clock() >= end:
                raise
            await asyncio.sleep(min(POLL_SECONDS, max(end - clock(), 0)))
            continue
        if job is not None and uid and job.uid != uid:
            job = None  # a new job has this name now
        first, uid = False, job.uid if job else uid
        code = waiting.verdict(goal, job)
        state = f"{job.status.phase} ({clean(job.status.reason, 64)})" if job else "gone"
        if code is not None:
            click.echo(f"{clean(key.name)} is {state}", err=code != waiting.REACHED)
            return code
        if clock() >= end:
            click.echo(f"{clean(key.name)} is still {state}, not {goal}", err=True)
            return waiting.TIMED_OUT
        await asyncio.sleep(min(POLL_SECONDS, max(end - clock(), 0)))
