"""The command `stacks`."""

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import click
from ddp_operator.api import ranks
from ddp_operator.hang import stacks as view
from ddp_operator.job.pods.state import PodState

from ddp_client.cli.app import (
    connection_options,
    fetch,
    job_argument,
    job_key,
    on_cluster,
    print_lines,
    width,
)
from ddp_client.cli.commands.pods.selection import chosen_pods
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.launcher import NoAnswerError, ask_launcher
from ddp_client.views.changes import RefusedError
from ddp_client.views.job.snapshot import JobSnapshot

_MOST_PODS: Final = 256
_AT_ONCE: Final = 8
"""Programs started in pods at the same time."""
_SECONDS: Final = 15.0
"""Time for a pod to answer; other requests for stacks have twelve seconds, its ranks two."""
_MOST_BYTES: Final = 3 * 1024 * 1024


@click.command()
@connection_options
@job_argument
@click.option(
    "--rank",
    "wanted_ranks",
    type=click.IntRange(0),
    multiple=True,
    help="Only this rank; repeatable.",
)
@click.option(
    "--max-pods",
    type=click.IntRange(1),
    default=_MOST_PODS,
    show_default=True,
    help="Most pods to ask; eight at a time.",
)
@click.option(
    "-o", "--output", "form", type=click.Choice(["json"]), help="Print all threads as an object."
)
def stacks(name: str, wanted_ranks: tuple[int, ...], max_pods: int, form: str | None) -> None:
    """Show the Python stacks of all ranks.

    Equal stacks are shown once: the main thread's frames, innermost first. The job is not
    disturbed, and nothing is written to its log. Its command must run under the launcher, and you
    need the right to create pods/exec. Exit code 1: no rank answered.
    """

    async def act(cluster: Cluster, namespace: str) -> list[view.Found]:
        job, pods = await fetch(cluster, job_key(namespace, name))
        chosen = chosen_pods(job, pods, wanted_ranks)
        if not chosen:
            raise RefusedError("the job has no pods now: run kubectl ddp why to see the reason")
        if len(chosen) > max_pods:
            click.echo(
                f"{len(chosen) - max_pods} more pods are left out: choose with --rank, or raise "
                "--max-pods.",
                err=True,
            )
        asked = chosen[:max_pods]
        if len(asked) > _AT_ONCE:
            said = f"Asking {len(asked)} pods, {_AT_ONCE} at a time; each has {2 * _SECONDS:g} s."
            click.echo(said, err=True)
        return await ask_all(cluster, job, asked)

    found = on_cluster(act)
    if wanted_ranks:
        found = [each for each in found if each.rank in wanted_ranks]
    if form:
        click.echo(json.dumps({"ranks": [each.to_json() for each in found]}, indent=2))
    else:
        print_lines(view.shown(found, width()))
    if all(each.problem for each in found):
        click.get_current_context().exit(1)


async def ask_all(cluster: Cluster, job: JobSnapshot, pods: Sequence[PodState]) -> list[view.Found]:
    """Return the stacks of all ranks of these pods."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(pod: PodState) -> list[view.Found]:
        async with slots:
            return await _ask(cluster, job, pod)

    return [each for found in await asyncio.gather(*map(ask, pods)) for each in found]


async def _ask(cluster: Cluster, job: JobSnapshot, pod: PodState) -> list[view.Found]:
    index, name = pod.identity.index, pod.key.name
    own = ranks.ranks(job.parsed.spec, index) if job.parsed else range(index, index + 1)
    if not pod.started:
        problem = "its pod has ended" if pod.exit else "its pod has not started"
        return [view.Found(rank, name, problem=problem) for rank in own]
    try:
        answer = await ask_launcher(
            cluster, pod.key, pod.container, "/stacks", limit_bytes=_MOST_BYTES, seconds=_SECONDS
        )
        return view.read(answer, name, own)
    except NoAnswerError as error:
        return [view.Found(rank, name, problem=str(error)) for rank in own]
