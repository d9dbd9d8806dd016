"""The command `profile`."""

import asyncio
from pathlib import Path
from typing import Final

import click

from ddp_operator.cli.app import (
    connection_options,
    fetch,
    job_argument,
    job_key,
    on_cluster,
    read_duration,
)
from ddp_operator.cli.commands.pods.selection import chosen_pods
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.launcher import NoAnswerError, ask_launcher
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.state import PodState
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.text import clean, counted

POLL_SECONDS: Final = 2.0
"""Between two looks whether a trace is done, each of which is a program in the pod."""
_MOST_RANKS: Final = 8
_MOST_STEPS: Final = 20
"""As the launcher has it."""
_MOST_BYTES: Final = 65 * 1024 * 1024
_GZIP: Final = b"\x1f\x8b"
_SECONDS: Final = 30.0
"""For the pod to answer."""


@click.command()
@connection_options
@job_argument
@click.option(
    "--steps",
    type=click.IntRange(1, _MOST_STEPS),
    default=5,
    show_default=True,
    help="Steps that are profiled, from the next one on.",
)
@click.option(
    "--rank",
    "wanted_ranks",
    type=click.IntRange(0),
    multiple=True,
    default=(0,),
    show_default=True,
    help=f"Can be given up to {_MOST_RANKS} times.",
)
@click.option(
    "--output",
    "-o",
    "folder",
    type=click.Path(file_okay=False, exists=True, writable=True, path_type=Path),
    default=Path(),
    help="Folder for the traces; default: here.",
)
@click.option(
    "--timeout",
    callback=read_duration,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="For the steps to be taken, and the traces to be written.",
)
def profile(
    name: str, steps: int, wanted_ranks: tuple[int, ...], folder: Path, timeout: float
) -> None:
    """Profile the next steps of chosen ranks with torch's profiler, and fetch the traces.

    For ranks of the bundled trainer, and scripts that use ddp_trainer.join, under the launcher.
    The steps are slower meanwhile, and other ranks wait for them. Traces go to
    NAME-rank-N.json.gz, for chrome://tracing or https://ui.perfetto.dev.
    Exit code 1: not all traces could be had.
    """
    chosen = sorted({*wanted_ranks})
    if len(chosen) > _MOST_RANKS:
        raise click.UsageError(f"--rank: choose {_MOST_RANKS} at most")
    paths = {rank: folder / f"{name}-rank-{rank}.json.gz" for rank in chosen}
    for path in paths.values():
        if path.exists():
            raise click.UsageError(f"{path} is there already: choose another --output, or move it")

    async def act(cluster: Cluster, namespace: str) -> list[str]:
        job, pods = await fetch(cluster, job_key(namespace, name))
        by_index = {pod.identity.index: pod for pod in chosen_pods(job, pods, chosen)}
        if job.parsed is None:
            raise RefusedError(f"which pod has which rank cannot be told: {job.problem}")
        of = {rank: by_index.get(ranks.pod_of(job.parsed.spec, rank)) for rank in chosen}
        click.echo(
            f"Profiling {counted(steps, 'step')} of {counted(len(chosen), 'rank')}; this takes "
            f"{timeout:g} s at most.",
            err=True,
        )
        ended = await asyncio.gather(
            *(_profiled(cluster, of[rank], rank, steps, paths[rank], timeout) for rank in chosen)
        )
        return [problem for problem in ended if problem]

    problems = on_cluster(act)
    for problem in problems:
        click.echo(f"error: {clean(problem, 600)}", err=True)
    if problems:
        click.get_current_context().exit(1)


async def _profiled(
    cluster: Cluster, pod: PodState | None, rank: int, steps: int, path: Path, timeout: float
) -> str:
    """Fetch one rank's trace, and say so; return what went wrong."""
    if pod is None or not pod.started:
        return f"rank {rank}: its pod does not run"

    async def ask(where: str) -> bytes:
        return await ask_launcher(
            cluster, pod.key, pod.container, where, limit_bytes=_MOST_BYTES, seconds=_SECONDS
        )

    try:
        async with asyncio.timeout(timeout):
            await ask(f"/profile?ranks={rank}&steps={steps}")
            trace = b""
            while not trace:
                await asyncio.sleep(POLL_SECONDS)
                trace = await ask(f"/trace?ranks={rank}")
    except NoAnswerError as error:
        return f"rank {rank}: {error}"
    except TimeoutError:
        return (
            f"rank {rank}: there is no trace after {timeout:g} s; it takes steps more slowly, or "
            "hangs: kubectl ddp stacks shows where"
        )
    if not trace.startswith(_GZIP):
        return f"rank {rank}: what its launcher answered is no trace"
    try:
        with path.open("xb") as file:
            file.write(trace)
    except OSError as error:
        return f"rank {rank}: cannot write {path}: {error.strerror}"
    click.echo(str(path))
    return ""
