"""Convert PyTorchJobs, TrainJobs, JobSets, Jobs and torchrun commands to DDPJobs.

Pure functions: from text to manifests and notes. Each field of the source that is lost or changes
its meaning gets a note.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import KIND

from ddp_client.convert import batch, command_line, jobset, pytorchjob, trainjob
from ddp_client.convert.notes import ConversionError, Note, Notes
from ddp_client.convert.references import mentions
from ddp_client.convert.source import Source
from ddp_client.documents import DocumentError, mapping, read

__all__ = ["Conversion", "ConversionError", "Note", "of_command_line", "of_manifests"]

_PYTORCHJOB: Final = ("kubeflow.org/v1", "PyTorchJob")
_GROUPS: Final = {"TrainJob": trainjob.GROUP, "JobSet": "jobset.x-k8s.io"}

_JOB: Final = ("batch/v1", "Job")
_KNOWN: Final = (
    f"{_PYTORCHJOB[0]} PyTorchJob, {trainjob.GROUP} TrainJob, jobset.x-k8s.io JobSet, batch/v1 Job"
)

_REMEDY: Final = "Or convert the command line: ddp convert -- torchrun ..."
_REMEDIES: Final[Mapping[str, str]] = {
    "sagemaker.amazonaws.com": (
        "Write a batch/v1 Job with the template of replicaSpecs[0], and its replicas as "
        "parallelism and completions"
    ),
    "batch.volcano.sh": (
        "Write a batch/v1 Job with the task that trains; then set spec.scheduling.gang to the "
        "cluster's gang scheduler"
    ),
    "workload.codeflare.dev": "Convert the object in its spec.components",
}
"""Advice for the jobs of some other API groups."""


@dataclass(frozen=True)
class Conversion:
    """The conversion of one object."""

    source: str
    """Kind and name of the object."""
    manifest: dict[str, Any] | None
    """The DDPJob; None: there is none."""
    notes: tuple[Note, ...]
    problem: str = ""
    """Why there is no DDPJob; also empty for objects that are not jobs, such as a ConfigMap."""


def of_manifests(text: str) -> Sequence[Conversion]:
    """Convert all jobs in the text of a file.

    Raises:
        ConversionError: the text cannot be read.
    """
    try:
        documents = read(text)
    except DocumentError as error:
        raise ConversionError(str(error)) from None
    runtimes = [one for one in documents if one.get("kind") in trainjob.RUNTIMES]
    return [_converted(one, runtimes) for one in documents if one not in runtimes]


def of_command_line(argv: Sequence[str], *, image: str | None = None) -> Conversion:
    """Convert a torchrun command line.

    Raises:
        ConversionError: it is not one, or a DDPJob cannot do the same.
    """
    notes = Notes()
    manifest = command_line.convert(argv, notes, image=image)
    return Conversion("the command line", manifest, notes.all())


def _converted(document: dict[str, Any], runtimes: Sequence[dict[str, Any]]) -> Conversion:
    kind, version = str(document.pop("kind", "")), str(document.pop("apiVersion", ""))
    title = f"{kind} {mapping(document, 'metadata').get('name', '')}".strip()
    notes = Notes()
    try:
        manifest = _manifest(kind, version, document, runtimes, notes)
    except ConversionError as error:
        return Conversion(title, None, notes.all(), str(error))
    if manifest is None:
        return _other(title, kind, version, document, notes)
    return Conversion(title, manifest, notes.all())


def _manifest(
    kind: str,
    version: str,
    document: dict[str, Any],
    runtimes: Sequence[dict[str, Any]],
    notes: Notes,
) -> dict[str, Any] | None:
    """Convert one object; None if it is of another kind, or does not train."""
    if (version, kind) == _PYTORCHJOB:
        return pytorchjob.convert(Source(document), notes)
    if kind == "TrainJob" and version.partition("/")[0] == _GROUPS[kind]:
        return trainjob.convert(Source(document), runtimes, notes)
    if kind == "JobSet" and version.partition("/")[0] == _GROUPS[kind]:
        return jobset.convert(Source(document), notes)
    if (version, kind) == _JOB and batch.trains(document):
        return batch.convert_job(Source(document), notes)
    return None


def _other(
    title: str, kind: str, version: str, document: dict[str, Any], notes: Notes
) -> Conversion:
    a_job = (kind.endswith("Job") and (version, kind) != _JOB) or "kubeflow.org" in version
    if a_job or batch.trains(document):
        remedy = _REMEDIES.get(version.partition("/")[0], _REMEDY)
        known = f"cannot be converted; {_KNOWN} can. {remedy}"
        why = "already a DDPJob; apply it" if kind == KIND else known
        return Conversion(title, None, (), f"{version} {kind}: {why}")
    why = "it does not train (no launcher, no GPU); apply it unchanged if the job needs it"
    if kind == "Service":
        why = "the operator creates one with the job's name; drop this one if it was for the pods"
    elif mentioned := next(mentions(document), None):
        why = mentioned
    notes.dropped(f"{version} {kind}", why)
    return Conversion(title, None, notes.all())
