"""The jobs as last seen: from the watch, and from the answers to our own writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import orjson

from ddp_operator.api.job import DDPJob, InvalidJobError
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
"""Not `managedFields`, nor `kubectl apply`'s copy of all in an annotation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job: as stored, in its metadata and status, and as understood.

    What is planned from an entry must be stored under that entry's resourceVersion; so news make a
    new one.
    """

    uid: str
    version: str
    """The job's resourceVersion."""
    stored: str
    """`manifest` as JSON: parsed it takes four times the memory, and only writes read it."""
    job: DDPJob | InvalidJobError
    status_written_at: datetime = _NEVER
    """When this operator last wrote the job's status."""

    @classmethod
    def of(
        cls, manifest: Manifest, job: DDPJob | InvalidJobError, status_written_at: datetime = _NEVER
    ) -> Self:
        """Keep of a stored job what is read again: there may be ten thousand."""
        metadata = manifest["metadata"]
        kept: dict[str, Any] = {
            name: manifest[name] for name in ("apiVersion", "kind", "status") if name in manifest
        }
        kept["metadata"] = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
        if isinstance(job, InvalidJobError):
            kept["spec"] = _time_to_live(manifest.get("spec"))
        return cls(metadata["uid"], _version(metadata), _written(kept), job, status_written_at)

    @property
    def manifest(self) -> Manifest:
        """The job as stored; without its spec, but for the time to live of a job which could not be
        understood.
        """
        manifest: Manifest = json.loads(self.stored)
        return manifest


class JobCache:
    """All jobs by name, never older than what was put in last."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._doubtful: set[Key] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """The job of this name, None when it does not exist."""
        return self._entries.get(key)

    @property
    def entries(self) -> Mapping[Key, Entry]:
        """All jobs by name, of this moment: they change while somebody else has a turn."""
        return self._entries

    def uids(self) -> dict[Key, str]:
        """The UID of each job, by name."""
        return {key: entry.uid for key, entry in self._entries.items()}

    def put(self, manifest: Manifest, *, written_at: datetime | None = None) -> bool:
        """Take in a job as stored, with the time if it answers our own write; say whether that was
        news.

        An echo or a late report of an older state changes nothing: our own writes put their
        answers in at once, and the watch tells of them afterwards.
        """
        metadata = manifest["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        known = self._entries.get(key)
        if known is not None and not _newer(_version(metadata), than=known.version):
            if written_at is not None:  # the watch was faster than the answer
                self._entries[key] = replace(known, status_written_at=written_at)
            return False
        if known is not None and known.uid == metadata["uid"]:
            written_at = written_at or known.status_written_at
        self._entries[key] = _read(manifest, written_at or _NEVER, known)
        return True

    def doubt(self, key: Key) -> None:
        """Take note that nobody knows what is stored: a write may have been done or not."""
        if key in self._entries:
            self._doubtful.add(key)

    def is_doubtful(self, key: Key) -> bool:
        """Whether the job must be read before anything is planned from it."""
        return key in self._doubtful

    def read(self, manifest: Manifest, *, knowing: Entry) -> None:
        """Take in a job that was read while `knowing` was what was known of it.

        Unless there has been news meanwhile it is the truth, and an older version too: then the
        server's storage was restored from a backup.
        """
        metadata = manifest["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        self._doubtful.discard(key)
        if self._entries.get(key) is not knowing:
            self.put(manifest)
        elif _version(metadata) != knowing.version:
            same = metadata["uid"] == knowing.uid
            written_at = knowing.status_written_at if same else _NEVER
            self._entries[key] = _read(manifest, written_at, knowing)

    def remove(self, key: Key, *, uid: str | None = None) -> bool:
        """Forget a job that is gone, with a UID only that very job; say whether it was known."""
        known = self._entries.get(key)
        if known is None or uid not in (None, known.uid):
            return False
        del self._entries[key]
        self._doubtful.discard(key)
        return True

    def prune(self, known: Mapping[Key, str], *, existing: Mapping[Key, str]) -> list[Key]:
        """Forget what a list lacks, by `uids` from before the list; return the names.

        What has taken a name while it was listed is another job, and stays.
        """
        gone = [key for key, uid in known.items() if existing.get(key) != uid]
        return [key for key in gone if self.remove(key, uid=known[key])]


def _read(manifest: Manifest, status_written_at: datetime, known: Entry | None) -> Entry:
    """Understand a job as stored; `known`: what was kept of it before."""
    job = known.job if known and isinstance(known.job, DDPJob) else None
    try:
        return Entry.of(manifest, DDPJob.parse(manifest, job), status_written_at)
    except InvalidJobError as error:
        # Without the traceback, which holds on to everything.
        return Entry.of(manifest, type(error)(str(error)), status_written_at)


def _written(kept: Manifest) -> str:
    try:
        return orjson.dumps(kept).decode()  # its bytes have room for three times as much
    except TypeError:  # it is nested a few hundred deep, as no status of this operator's CRD is
        return json.dumps(kept)


def _time_to_live(spec: Any) -> dict[str, Any]:
    name = "ttlSecondsAfterFinished"
    return {name: spec[name]} if isinstance(spec, Mapping) and name in spec else {}


def _version(metadata: Manifest) -> str:
    return str(metadata.get("resourceVersion", ""))


def _newer(new: str, *, than: str) -> bool:
    """Compare resource versions: integers on every API server; any other is taken as news.

    They grow through all objects of a resource, so that a job which bears the name of an earlier
    one has the later version.
    """
    if new.isdecimal() and than.isdecimal():
        return int(new) > int(than)
    return new != than
