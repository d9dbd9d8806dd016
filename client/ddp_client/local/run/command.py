"""The command itself: early checks, the choice of display, and the exit code."""

import argparse
import asyncio
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGPIPE

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import gpu_limit, trainer_container, warnings
from ddp_operator.api.spec.overrides import accelerators, kinds

from ddp_client.local.machine import Workdir, WorkdirInUseError
from ddp_client.local.machine.gpus import visible_gpus
from ddp_client.local.run.display import Display, PlainDisplay, SafeDisplay
from ddp_client.local.run.kills import KillRequest
from ddp_client.local.run.manifest import (
    NO_IMAGE,
    JobFile,
    ManifestError,
    lacks_memory_checkpoint,
    read_job_file,
)
from ddp_client.local.run.run_state import RunState
from ddp_client.local.run.session import EXIT_SUCCEEDED, Session
from ddp_client.local.run.summary import summarise

_EXIT_UNSHOWN = 1
_EXIT_USAGE = 2


def run(arguments: argparse.Namespace) -> int:
    """Run a job on this machine. Return the exit code: 0 if it succeeded, 3 if not, 2 for bad
    input, 1 if the output cannot be written, 128 + n if stopped by signal n.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    kills: list[KillRequest] = arguments.kill_rank
    try:
        file = read_job_file(arguments.file)
        refuse_what_cannot_run(file.job)
        _refuse_kills(file.job, kills)
        workdir = Workdir(arguments.workdir or Path(tempfile.mkdtemp(prefix="ddpjob-")))
        workdir.claim()
    except (ManifestError, WorkdirInUseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_USAGE
    run_state = RunState(file.job)
    display = SafeDisplay(_display(run_state, plain=arguments.plain))
    with display:
        for note in _notes(file, arguments.python):
            display.note(note)
        session = Session(
            file,
            workdir=workdir,
            run_state=run_state,
            display=display,
            kills=kills,
            progress_seconds=arguments.progress_poll_seconds,
            python=arguments.python,
        )
        code = asyncio.run(session.run())
    title, lines = summarise(
        run_state,
        kills=kills,
        workdir=workdir.path,
        file=arguments.file,
        on_cluster=arguments.on_cluster,
    )
    display.summary(title, lines, good=code == EXIT_SUCCEEDED)
    return code if display.error is None else _unshown(display.error)


def _unshown(error: BaseException) -> int:
    """Return the exit code of a run that could not show all of itself."""
    if isinstance(error, BrokenPipeError | SystemExit):
        return 128 + SIGPIPE
    if not isinstance(error, OSError):
        raise error
    print(f"error: cannot write to standard output: {error.strerror}", file=sys.stderr)
    return _EXIT_UNSHOWN


def refuse_what_cannot_run(job: DDPJob) -> None:
    """Refuse jobs that would otherwise wait forever.

    Raises:
        ManifestError: this job cannot run on this machine.
    """
    if sys.platform != "linux":
        raise ManifestError("local runs need Linux: its process control replaces containers")
    if job.spec.suspend:
        raise ManifestError("spec.suspend is true, so nothing would run; set it to false")
    if any(one.fabric for one in accelerators(job.spec)):
        raise ManifestError(
            "spec.accelerator.network: this machine has no GKE network for GPUs; set it to none"
        )
    wanted = sum(gpu_limit(kind) * sum(map(len, pods)) for kind, pods in kinds(job.spec))
    here = len(visible_gpus(os.environ))
    if wanted > here:
        raise ManifestError(
            f"the job requests {wanted} GPUs in all, this machine has {here or 'none'}: remove "
            "spec.accelerator and the container's GPU limit and set spec.backend to gloo to train "
            "on the CPU, or apply the job to a cluster with GPUs"
        )


def _refuse_kills(job: DDPJob, kills: Sequence[KillRequest]) -> None:
    world_size = ranks.world_size(job.spec)
    for kill in kills:
        if kill.rank >= world_size:
            raise ManifestError(f"--kill-rank {kill}: use a rank from 0 to {world_size - 1}")


def _notes(file: JobFile, python: str) -> Iterator[str]:
    """Yield the differences from a run in a cluster."""
    pod_spec = file.job.spec.template["spec"]
    trainer = trainer_container(file.job.spec.template)
    yield f"{file.job.name}: every pod is a process of this machine, run by {python}"
    if trainer.get("image") != NO_IMAGE:
        yield (
            f"image {trainer.get('image')}, resource limits and the size of /dev/shm have no "
            "effect here: pods share this machine's"
        )
    yield from warnings(file.job.spec)
    others = [c for c in pod_spec["containers"] if c.get("name") != trainer.get("name")]
    names = [str(c.get("name")) for c in [*(pod_spec.get("initContainers") or ()), *others]]
    if names:
        yield f"other containers of the pod do not run here: {', '.join(names)}"
    if file.job.spec.isolation == "Job":
        yield "spec.isolation has no effect here: any process of this machine can reach the pods"
    if lacks_memory_checkpoint(file.job):
        yield (
            "spec.memoryCheckpoint has no effect here: pods have no host names by which their "
            "launchers could exchange snapshots; a job of one pod keeps them"
        )
    if file.ignored:
        yield f"ignored here: {', '.join(file.ignored)}"


def _display(run_state: RunState, *, plain: bool) -> Display:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # logs contain any character
    if plain or not sys.stdout.isatty():
        return PlainDisplay(run_state)
    # Imported here: a pipe needs no rich.
    from rich.console import Console  # noqa: PLC0415

    from ddp_client.local.run.live import LiveDisplay  # noqa: PLC0415

    return LiveDisplay(run_state, Console(highlight=False))
