"""The command `why`."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from ddp_operator.api.values.text import clean
from ddp_operator.hang import traces
from ddp_operator.ports import Key
from ddp_protocol.message import InvalidMessageError

from ddp_client.cli.app import fetch, on_job, optional_job_argument, print_lines, width
from ddp_client.cli.commands.pods.hang import look
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.own_remedies import own_remedies
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.diagnosis import Diagnosis, diagnose
from ddp_client.views.own_remedies import with_own
from ddp_client.views.traces import ReducedDumps, as_dict, diagnosis

_READER: Final = "ddp_trainer.flight_recorder"
_SECONDS: Final = 600.0


@click.command()
@optional_job_argument
@click.option(
    "--traces",
    "dumps",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Name the rank that a hanging job waits for, from a directory with a dump of torch's "
    f"flight recorder for each rank, or from a file with the output of python -m {_READER}; no "
    "cluster is used.",
)
@click.option(
    "--hang",
    is_flag=True,
    help="Ask all ranks of a running job where they are, and name the one that the others wait "
    "for; needs the right to create pods/exec.",
)
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="Print an object.")
def why(name: str | None, dumps: Path | None, form: str | None, *, hang: bool) -> None:
    """Explain the state of a job, and what to do next."""
    if dumps is not None:
        if name is not None or hang:
            raise click.UsageError("give NAME or --traces, not both")
        _explain_traces(dumps, form)
        return
    if name is None:
        raise click.UsageError("give NAME, or --traces PATH")
    if hang:
        answer = on_job(name, look)
        _print(answer.to_json(), answer.lines, form)
        return
    now = datetime.now(UTC)

    async def read(cluster: Cluster, key: Key) -> Diagnosis:
        job, pods = await fetch(cluster, key)
        own = await own_remedies(cluster, key.namespace)
        general = diagnose(job, pods, now, queue=await queue_state(cluster, job))
        return with_own(general, own, job, pods)

    explanation = on_job(name, read)
    _print(asdict(explanation), explanation.lines, form)


def _explain_traces(path: Path, form: str | None) -> None:
    try:
        if path.is_dir():
            content = _reduced(path)
        else:
            with path.open("rb") as file:
                content = file.read(ReducedDumps.MAX_BYTES + 1)
        dumps = ReducedDumps.read(content)
        verdict = traces.analyse(dumps.by_rank())
    except OSError as error:
        raise click.ClickException(clean(f"{path}: {error.strerror}")) from None
    except InvalidMessageError as error:
        raise click.ClickException(
            clean(f"{path}: {error}; give the output of python -m {_READER}")
        ) from None
    except traces.TooMuchEffortError:
        raise click.ClickException(f"{path}: the waits of its ranks are too complex") from None
    lines = diagnosis(verdict, dumps.unreadable).lines
    _print(as_dict(verdict, dumps.unreadable), lines, form)


def _reduced(directory: Path) -> bytes:
    """Return the reduced dumps of a directory; they are read in a process of its own."""
    command = [sys.executable, "-P", "-m", _READER, str(directory.absolute())]
    try:
        ran = subprocess.run(
            command, capture_output=True, check=False, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"{directory}: not read within {_SECONDS:g} s: give fewer files"
        ) from None
    if ran.returncode == 0:
        return ran.stdout
    problem = ran.stderr.decode(errors="replace")
    if "No module named" in problem:
        problem = (
            f"reading dumps needs the package ddp-trainer (pip install --no-deps ddp-trainer); or "
            f"run python -m {_READER} DIR where it is installed, and give the file with its output"
        )
    raise click.ClickException(clean(problem))


def _print(answer: Mapping[str, Any], lines: Callable[[int], list[str]], form: str | None) -> None:
    """Print an answer as JSON if that is asked for, otherwise as lines for this terminal."""
    if form:
        click.echo(json.dumps(answer, indent=2))
    else:
        print_lines(lines(width()))
