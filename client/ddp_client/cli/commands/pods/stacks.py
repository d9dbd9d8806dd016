"""The command `stacks`."""

import json
from typing import Final

import click
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import fetch, job_argument, on_job, print_lines, width
from ddp_client.cli.commands.pods.selection import ranks_option
from ddp_client.remote.channels import AT_ONCE, each_of
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.launcher import NoAnswerError, ask_launcher
from ddp_client.views import stacks as view
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.refused import RefusedError

_MOST_PODS: Final = 256
_SECONDS: Final = 15.0
"""Time for a pod to answer; other requests for stacks have twelve seconds, its ranks two."""
_MOST_BYTES: Final = 3 * 1024 * 1024


@click.command()
@job_argument
@ranks_option("Only this rank; repeatable.")
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

    async def act(cluster: Cluster, key: Key) -> list[view.Found]:
        job, pods = await fetch(cluster, key)
        chosen = pods.of_ranks(job, wanted_ranks)
        if not chosen:
            raise RefusedError("the job has no pods now: run kubectl ddp why to see the reason")
        if len(chosen) > max_pods:
            click.echo(
                f"{len(chosen) - max_pods} more pods are left out: choose with --rank, or raise "
                "--max-pods.",
                err=True,
            )
        chosen = chosen[:max_pods]
        if len(chosen) > AT_ONCE:
            note = f"Asking {len(chosen)} pods, {AT_ONCE} at a time; each has {2 * _SECONDS:g} s."
            click.echo(note, err=True)
        answers = await each_of(chosen, lambda pod: _ask(cluster, job, pod))
        return [each for answer in answers for each in answer]

    results = on_job(name, act)
    if wanted_ranks:
        results = [each for each in results if each.rank in wanted_ranks]
    if form:
        click.echo(json.dumps({"ranks": [each.to_json() for each in results]}, indent=2))
    else:
        print_lines(view.shown(results, width()))
    if all(each.problem for each in results):
        click.get_current_context().exit(1)


async def _ask(cluster: Cluster, job: JobSnapshot, pod: PodState) -> list[view.Found]:
    index, name = pod.identity.index, pod.key.name
    own = job.ranks_of(index)
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
