"""A job that runs as processes of this machine."""

import shlex
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from ddp_operator.api.command import is_python

from ddp_client.cli import output
from ddp_client.submit import (
    JobRequest,
    job_manifest,
)


def run_locally(request: JobRequest, context: click.Context) -> int:
    """Run the job with the operator's own engine, its pods as processes of this machine."""
    # Imported here because it takes half a second.
    from ddp_client.local.run.command import run as run_here  # noqa: PLC0415

    scripts = context.params["scripts"]
    here = {path: str(Path(path).resolve()) for path in scripts}
    command = list(request.command) or (["python", scripts[0]] if scripts else [])
    found = [here.get(word, here.get(word.removeprefix("./"), word)) for word in command]
    python = _python(found[:1])
    if found and is_python(found[0]) and "/" not in found[0]:
        found[0] = python
    made = job_manifest(replace(request, scripts=None, command=found))
    if workdir := context.params["workdir"]:
        made["spec"]["template"]["spec"]["containers"][0]["workingDir"] = str(
            Path(workdir).resolve()
        )
    # The folder stays: the last line that is shown says how to run the job again.
    place = Path(tempfile.mkdtemp(prefix="ddpjob-"))
    file = place / f"{request.name}.yaml"
    file.write_text(output.documents([made], "yaml"))
    arguments = Namespace(
        file=file,
        workdir=place / "run",
        kill_rank=[],
        progress_poll_seconds=1.0,
        plain=False,
        python=python,
        on_cluster=_command_for_cluster(request.name, context),
    )
    return run_here(arguments)


def _python(command: Sequence[str]) -> str:
    """Return the path of the user's Python: the command's, or the first one on the PATH."""
    names = [*(word for word in command if is_python(word)), "python", "python3"]
    return next((path for name in names if (path := shutil.which(name))), sys.executable)


def _command_for_cluster(name: str, context: click.Context) -> str:
    """Return the same command line for a cluster."""
    words = ["kubectl", "ddp", "run", name]
    if context.params["image"] is None:
        words += ["--image", "IMAGE"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if not isinstance(option, click.Option) or option.name == "local":
            continue
        if value is None or value is False or value in ((), option.default):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [option.opts[-1], *([] if option.is_flag else [str(each)])]
    command = context.params["command"]
    return shlex.join([*words, *(["--", *command] if command else [])])
