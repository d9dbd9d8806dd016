"""Jobs as last seen, from the watch and from the responses to the operator's own writes."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from ddp_operator.api.constants import CONTROLLER, MULTIKUEUE
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.values import deep_json
from ddp_operator.ports import Key, Manifest

_NEVER = datetime.min.replace(tzinfo=UTC)

_KEPT_METADATA = (
    "namespace",
    "name",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
"""Without `managedFields`, and without kubectl apply's copy of the whole object in an
annotation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job: metadata and status as stored, and the parsed job.

    A plan that is made from an entry must be stored under that entry's resourceVersion. So each
    change makes a new entry.
    """

    uid: str
    version: str
    """The job's resourceVersion."""
    stored: str
    """`manifest` as JSON: parsed it takes four times the memory, and only writes read it."""
    outline: DDPJob | InvalidJobError
    """The job, for scans of all jobs: of a large spec it has only the short fields
    (`DDPJob.outline`). If the stored spec is invalid, it has the last valid one."""
    status_written_at: datetime = _NEVER
    """When this operator last wrote the job's status."""
    problem: InvalidJobError | None = None
    """Why the stored spec does not apply; None: it does."""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        job: DDPJob | InvalidJobError,
        status_written_at: datetime = _NEVER,
        *,
        problem: InvalidJobError | None = None,
    ) -> Self:
        """Keep only what is read again of a stored job: there may be ten thousand jobs."""
        metadata = manifest["metadata"]
        kept: dict[str, Any] = {
            name: manifest[name] for name in ("apiVersion", "kind", "status") if name in manifest
        }
        kept["metadata"] = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
        if problem is not None:
            kept["spec"] = _unvalidated(manifest.get("spec"))
        outline = job.outline if isinstance(job, DDPJob) else job
        return cls(
            metadata["uid"],
            _version(metadata),
            deep_json.dumps(kept),
            outline,
            status_written_at,
            problem,
        )

    @property
    def job(self) -> DDPJob | InvalidJobError:
        """The job with its whole spec, which is parsed again if it is large."""
        return self.outline.whole if isinstance(self.outline, DDPJob) else self.outline

    @property
    def manifest(self) -> Manifest:
        """The stored job without its spec. Of an invalid spec, the time to live and the controller
        are kept.
        """
        manifest: Manifest = deep_json.loads(self.stored)
        return manifest

    @property
    def foreign(self) -> bool:
        """True if the job is of a controller that the operator does not work with."""
        if isinstance(self.outline, DDPJob):
            who = self.outline.spec.managed_by
        else:
            who = self.manifest["spec"].get("managedBy")
        return who not in (None, CONTROLLER, MULTIKUEUE)


class JobCache:
    """All jobs by name, never older than the last entry that was put in."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._doubtful: set[Key] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """Return the job of this name, or None if it does not exist."""
        return self._entries.get(key)

    @property
    def entries(self) -> Mapping[Key, Entry]:
        """All jobs by name, a live view: it may change whenever another task runs."""
        return self._entries

    def uids(self) -> dict[Key, str]:
        """Return the UID of each job, by name."""
        return {key: entry.uid for key, entry in self._entries.items()}

    def put(self, manifest: Manifest, *, written_at: datetime | None = None) -> bool:
        """Store a job, with `written_at` if it answers our own write. Return whether it was new.

        An echo or a late report of an older state changes nothing: responses to our own writes
        enter the cache at once, and the watch reports them later.
        """
        key, metadata = Key.of(manifest), manifest["metadata"]
        known = self._entries.get(key)
        if known is not None and not _newer(_version(metadata), than=known.version):
            if written_at is not None:  # the watch was faster than the response
                self._entries[key] = replace(known, status_written_at=written_at)
            return False
        if known is not None and known.uid == metadata["uid"]:
            written_at = written_at or known.status_written_at
        self._entries[key] = _read(manifest, written_at or _NEVER, known)
        return True

    def doubt(self, key: Key) -> None:
        """Mark a job as uncertain: a write may or may not have been stored."""
        if key in self._entries:
            self._doubtful.add(key)

    def is_doubtful(self, key: Key) -> bool:
        """Return whether the job must be read before it is planned."""
        return key in self._doubtful

    def read(self, manifest: Manifest, *, knowing: Entry) -> None:
        """Store a job that was read while `knowing` was its entry.

        If the entry has not changed since, the read version is right even if it is older: then the
        server's storage was restored from a backup.
        """
        key, metadata = Key.of(manifest), manifest["metadata"]
        self._doubtful.discard(key)
        if self._entries.get(key) is not knowing:
            self.put(manifest)
        elif _version(metadata) != knowing.version:
            same = metadata["uid"] == knowing.uid
            written_at = knowing.status_written_at if same else _NEVER
            self._entries[key] = _read(manifest, written_at, knowing)

    def remove(self, key: Key, *, uid: str | None = None) -> bool:
        """Forget a job that is gone; with a UID, only that job. Return whether it was known."""
        known = self._entries.get(key)
        if known is None or uid not in (None, known.uid):
            return False
        del self._entries[key]
        self._doubtful.discard(key)
        return True

    def prune(self, known: Mapping[Key, str], *, existing: Mapping[Key, str]) -> list[Key]:
        """Forget the jobs that a list lacks, and return their names. `known` are the UIDs before
        the list.

        A job that took a name during the list is another job, and stays.
        """
        gone = [key for key, uid in known.items() if existing.get(key) != uid]
        return [key for key in gone if self.remove(key, uid=known[key])]


def _read(manifest: Manifest, status_written_at: datetime, known: Entry | None) -> Entry:
    """Parse a stored job; `known` is its earlier entry."""
    before = known.outline if known and isinstance(known.outline, DDPJob) else None
    job: DDPJob | InvalidJobError
    try:
        return Entry.of(manifest, DDPJob.parse(manifest, before), status_written_at)
    except InvalidJobError as error:
        # Without the traceback, which would keep much in memory.
        job = problem = type(error)(str(error))
    if before is not None and before.uid == manifest["metadata"]["uid"]:
        with contextlib.suppress(InvalidJobError):  # the status cannot be read, either
            job = before.continued(manifest)
    return Entry.of(manifest, job, status_written_at, problem=problem)


def _unvalidated(spec: Any) -> dict[str, Any]:
    """Return the fields that also matter in an invalid spec."""
    names = ("ttlSecondsAfterFinished", "managedBy")
    return {name: spec[name] for name in names if name in spec} if isinstance(spec, Mapping) else {}


def _version(metadata: Manifest) -> str:
    return str(metadata.get("resourceVersion", ""))


def _newer(new: str, *, than: str) -> bool:
    """Compare resource versions: integers on every API server; any other is treated as new.

    They grow over all objects of a resource, so a later job of the same name has the later version.
    """
    if new.isdecimal() and than.isdecimal():
        return int(new) > int(than)
    return new != than
