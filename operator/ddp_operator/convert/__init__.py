"""Makes DDPJobs of what other projects run: PyTorchJobs, TrainJobs, JobSets, torchrun's commands.

Pure: from text and words to manifests and notes. Nothing of a source is lost without a note.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import KIND
from ddp_operator.convert import command_line, jobset, pytorchjob, trainjob
from ddp_operator.convert.documents import MAX_BYTES, read
from ddp_operator.convert.notes import ConversionError, Note, Notes
from ddp_operator.convert.source import Source

__all__ = ["MAX_BYTES", "Conversion", "ConversionError", "Note", "of_command_line", "of_manifests"]

_PYTORCHJOB: Final = ("kubeflow.org/v1", "PyTorchJob")
_GROUPS: Final = {"TrainJob": trainjob.GROUP, "JobSet": "jobset.x-k8s.io"}

_KNOWN: Final = f"{_PYTORCHJOB[0]} PyTorchJob, {trainjob.GROUP} TrainJob, jobset.x-k8s.io JobSet"


@dataclass(frozen=True)
class Conversion:
    """What became of one object."""

    source: str
    """Its kind and name."""
    manifest: dict[str, Any] | None
    """The DDPJob; None: there is none."""
    notes: tuple[Note, ...]
    problem: str = ""
    """Why there is no DDPJob; empty too where none was to be expected, as of a ConfigMap."""


def of_manifests(text: str) -> Sequence[Conversion]:
    """Convert all jobs in a file's text.

    Raises:
        ConversionError: the text cannot be read.
    """
    documents = read(text)
    runtimes = [one for one in documents if one.get("kind") in trainjob.RUNTIMES]
    return [_converted(one, runtimes) for one in documents if one not in runtimes]


def of_command_line(argv: Sequence[str], *, image: str | None = None) -> Conversion:
    """Convert a command line of torchrun's.

    Raises:
        ConversionError: it is none, or asks for what no DDPJob can have.
    """
    notes = Notes()
    manifest = command_line.convert(argv, notes, image=image)
    return Conversion("the command line", manifest, notes.all())


def _converted(document: dict[str, Any], runtimes: Sequence[dict[str, Any]]) -> Conversion:
    kind, version = str(document.pop("kind", "")), str(document.pop("apiVersion", ""))
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    title = f"{kind} {name}".strip()
    notes = Notes()
    try:
        if (version, kind) == _PYTORCHJOB:
            manifest = pytorchjob.convert(Source(document), notes)
        elif kind == "TrainJob" and version.partition("/")[0] == _GROUPS[kind]:
            manifest = trainjob.convert(Source(document), runtimes, notes)
        elif kind == "JobSet" and version.partition("/")[0] == _GROUPS[kind]:
            manifest = jobset.convert(Source(document), notes)
        else:
            return _other(title, kind, version, notes)
    except ConversionError as error:
        return Conversion(title, None, notes.all(), str(error))
    return Conversion(title, manifest, notes.all())


def _other(title: str, kind: str, version: str, notes: Notes) -> Conversion:
    if kind.endswith("Job") or "kubeflow.org" in version:
        known = f"cannot be converted; {_KNOWN} can"
        why = "it is one already" if kind == KIND else known
        return Conversion(title, None, (), f"{version} {kind}: {why}")
    notes.dropped(f"{version} {kind}", "no job of training; apply it as it is, if the job needs it")
    return Conversion(title, None, notes.all())
