"""The command `convert`: other projects' manifests, or a torchrun command line, to DDPJobs."""

import sys
from collections.abc import Sequence
from typing import Final

import click
from ddp_operator.api.values.text import clean

from ddp_client.cli.output import documents
from ddp_client.convert import Conversion, ConversionError, of_command_line, of_manifests
from ddp_client.documents import DocumentError, read_text

_NOTHING: Final = 2
_SOME: Final = 1
_LONGEST: Final = 1024
"""Most characters of a note: a field's path and a sentence."""


@click.command(
    short_help="Convert PyTorchJobs, TrainJobs, JobSets or a torchrun command line to DDPJobs."
)
@click.argument("source", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True
)
@click.option("--image", help="The image; only for a command line.")
def convert(source: tuple[str, ...], output: str, image: str | None) -> None:
    """Convert PyTorchJobs, TrainJobs (with their runtimes), JobSets and Jobs in FILE to DDPJobs.

    FILE - is standard input. A command line can take the place of FILE:

        ddp convert -- torchrun --nnodes 2 train.py --lr 1

    Manifests go to standard output. Notes go to standard error: they name fields that mean
    something different in a DDPJob, and fields that have no place there. Exit codes: 0 all
    converted, also with notes; 1 some jobs could not be converted; 2 none could.
    """
    try:
        if len(source) == 1 and source[0] != "torchrun":
            if image is not None:
                raise ConversionError("--image: only for a command line; manifests have an image")
            conversions = of_manifests(_read(source[0]))
        else:
            conversions = [of_command_line(source, image=image)]
    except (ConversionError, DocumentError) as error:
        _say(f"error: {error}")
        sys.exit(_NOTHING)
    manifests = [one.manifest for one in conversions if one.manifest is not None]
    _tell(conversions)
    if not manifests:
        if not any(one.problem for one in conversions):
            _say("error: the file has no training job")
        sys.exit(_NOTHING)
    click.echo(documents(manifests, output))
    sys.exit(_SOME if any(one.problem for one in conversions) else 0)


def _read(path: str) -> str:
    try:
        with click.open_file(path, "rb") as file:
            return read_text(file)
    except OSError as error:
        raise ConversionError(f"cannot read {path}: {error.strerror}; name a file") from None


def _tell(conversions: Sequence[Conversion]) -> None:
    for one in conversions:
        for note in one.notes:
            _say(f"{one.source}: {note}")
        if one.problem:
            _say(f"error: {one.source}: {one.problem}")


def _say(text: str) -> None:
    click.echo(clean(text, _LONGEST), err=True)
