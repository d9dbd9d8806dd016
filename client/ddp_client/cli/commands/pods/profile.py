"""The command `profile`."""

import asyncio
from pathlib import Path
from typing import Final

import click
from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import fetch, job_argument, on_job, read_duration
from ddp_client.cli.commands.pods.selection import ranks_option
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.launcher import NoAnswerError, ask_launcher

POLL_SECONDS: Final = 2.0
"""Seconds between two requests for a trace; each starts a program in the pod."""
_MOST_RANKS: Final = 8
_MOST_STEPS: Final = 20
"""The launcher's own limit."""
_MOST_BYTES: Final = 65 * 1024 * 1024
_GZIP: Final = b"\x1f\x8b"
_SECONDS: Final = 30.0
"""Time for the pod to answer."""


@click.command()
@job_argument
@click.option(
    "--steps",
    type=click.IntRange(1, _MOST_STEPS),
    default=5,
    show_default=True,
    help="Number of steps to profile, starting with the next one.",
)
@ranks_option(
    f"Rank to profile; repeatable, up to {_MOST_RANKS} times.", default=(0,), show_default=True
)
@click.option(
    "--output",
    "-o",
    "folder",
    type=click.Path(file_okay=False, exists=True, writable=True, path_type=Path),
    default=Path(),
    help="Folder for the traces; default: the current directory.",
)
@click.option(
    "--timeout",
    callback=read_duration,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="Time limit for the steps and the traces.",
)
def profile(
    name: str, steps: int, wanted_ranks: tuple[int, ...], folder: Path, timeout: float
) -> None:
    """Profile the next steps of ranks with torch's profiler.

    Works for the bundled trainer, and for scripts that use ddp_trainer.join, under the launcher.
    Profiled steps are slower, and the other ranks wait for them. Traces are written to
    NAME-rank-N.json.gz; open them with chrome://tracing or https://ui.perfetto.dev.
    Exit code 1: some traces are missing.
    """
    chosen = sorted({*wanted_ranks})
    if len(chosen) > _MOST_RANKS:
        raise click.UsageError(f"--rank: use it at most {_MOST_RANKS} times")
    paths = {rank: folder / f"{name}-rank-{rank}.json.gz" for rank in chosen}
    for path in paths.values():
        if path.exists():
            raise click.UsageError(f"{path} already exists: choose another --output, or move it")

    async def act(cluster: Cluster, key: Key) -> list[str]:
        job, pods = await fetch(cluster, key)
        of = {rank: next(iter(pods.of_ranks(job, (rank,))), None) for rank in chosen}
        click.echo(
            f"Profiling {counted(steps, 'step')} of {counted(len(chosen), 'rank')}; this takes at "
            f"most {timeout:g} s.",
            err=True,
        )
        ended = await asyncio.gather(
            *(_profiled(cluster, of[rank], rank, steps, paths[rank], timeout) for rank in chosen)
        )
        return [problem for problem in ended if problem]

    problems = on_job(name, act)
    for problem in problems:
        click.echo(f"error: {clean(problem, 600)}", err=True)
    if problems:
        click.get_current_context().exit(1)


async def _profiled(
    cluster: Cluster, pod: PodState | None, rank: int, steps: int, path: Path, timeout: float
) -> str:
    """Write one rank's trace and print the path; return the error, empty without one."""
    if pod is None or not pod.started:
        return f"rank {rank}: its pod is not running"

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
            f"rank {rank}: no trace after {timeout:g} s: its steps take longer, or it hangs; run "
            "kubectl ddp stacks, or raise --timeout"
        )
    if not trace.startswith(_GZIP):
        return f"rank {rank}: its launcher's answer is not a trace"
    try:
        with path.open("xb") as file:
            file.write(trace)
    except OSError as error:
        return f"rank {rank}: cannot write {path}: {error.strerror}"
    click.echo(str(path))
    return ""
