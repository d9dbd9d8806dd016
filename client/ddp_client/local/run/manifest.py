"""Reads a file for `kubectl apply -f`, and finds the job in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import API_VERSION, KIND
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.ports import Manifest

from ddp_client import documents

NO_IMAGE = "local"
"""Image of a job that was made for a local run: a pod must name one."""


class ManifestError(Exception):
    """No job can be run from this file. The text names the place and the remedy."""


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """The parts of a file that a local run needs."""

    manifest: Manifest
    """The job, with all defaults of the schema."""
    job: DDPJob
    config_maps: Mapping[str, Manifest]
    ignored: tuple[str, ...]
    """Ignored objects, as `Kind name`."""


def read_job_file(path: Path) -> JobFile:
    """Read a YAML file with one DDPJob.

    Raises:
        ManifestError: the file cannot be read, or its job is invalid.
    """
    return job_file(_documents(path), where=str(path))


def job_file(objects: Sequence[Manifest], *, where: str) -> JobFile:
    """Sort the objects of a file with one DDPJob; `where` is its name in errors.

    Raises:
        ManifestError: the job is invalid.
    """
    jobs = [item for item in objects if item.get("kind") == KIND]
    if len(jobs) != 1:
        names = ", ".join(str(_metadata(job).get("name")) for job in jobs) or "none"
        raise ManifestError(
            f"{where}: a run needs exactly one {KIND}, this file has {len(jobs)} ({names})"
        )
    manifest, job = _checked(where, jobs[0])
    others = [item for item in objects if item.get("kind") != KIND]
    maps = [other for other in others if other.get("kind") == "ConfigMap"]
    return JobFile(
        manifest=manifest,
        job=job,
        config_maps={str(_metadata(item).get("name")): item for item in maps},
        ignored=tuple(
            f"{other.get('kind')} {_metadata(other).get('name')}"
            for other in others
            if other not in maps
        ),
    )


def _documents(path: Path) -> Sequence[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            return documents.read(documents.read_text(file))
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}; name a manifest") from None
    except documents.DocumentError as error:
        raise ManifestError(f"{path}: {error}") from None


def _checked(where: str, document: Manifest) -> tuple[Manifest, DDPJob]:
    """Return the job with its defaults, as the API server would store it."""
    if document.get("apiVersion") != API_VERSION:
        raise ManifestError(
            f"{where}: apiVersion is {document.get('apiVersion')!r}; set it to {API_VERSION}"
        )
    metadata = _metadata(document)
    if not isinstance(metadata.get("name"), str):
        raise ManifestError(f"{where}: metadata.name is missing; give the job a name")
    spec = document.get("spec") or {}
    if not isinstance(spec, dict):
        raise ManifestError(f"{where}: spec must hold fields, not {str(spec)[:60]!r}")
    # Here, no other controller can run it.
    spec = {name: value for name, value in spec.items() if name != "managedBy"}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    manifest = documents.as_stored(job)
    try:
        parsed = DDPJob.parse(manifest)
    except InvalidJobError as error:
        raise ManifestError(f"{where}: {KIND} {metadata['name']} is invalid: {error}") from None
    defaulted = parsed.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if lacks_memory_checkpoint(parsed):
        del defaulted["memoryCheckpoint"]
    return {**manifest, "spec": defaulted}, parsed


def lacks_memory_checkpoint(job: DDPJob) -> bool:
    """Return whether a job has checkpoints in memory that a local run cannot keep: launchers reach
    each other by host name, and pods have none here.
    """
    return job.spec.memory_checkpoint is not None and job.spec.max_size > 1


def _metadata(document: Manifest) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
