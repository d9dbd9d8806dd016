"""The jobs as last seen: from the watch, and from the answers to our own writes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

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

    manifest: Manifest
    """Without its spec, but for the time to live of a job which could not be understood."""
    job: DDPJob | InvalidJobError
    status_written_at: datetime = _NEVER
    """When this operator last wrote the job's status."""

    @property
    def uid(self) -> str:
        """The job's UID."""
        uid: str = self.manifest["metadata"]["uid"]
        return uid


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
        if known is not None and not _newer(manifest, than=known.manifest):
            if written_at is not None:  # the watch was faster than the answer
                self._entries[key] = replace(known, status_written_at=written_at)
            return False
        if known is not None and known.uid == metadata["uid"]:
            written_at = written_at or known.status_written_at
        self._entries[key] = _entry(manifest, written_at or _NEVER, known)
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
        elif metadata.get("resourceVersion") != knowing.manifest["metadata"].get("resourceVersion"):
            same = metadata["uid"] == knowing.uid
            written_at = knowing.status_written_at if same else _NEVER
            self._entries[key] = _entry(manifest, written_at, knowing)

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


def _entry(manifest: Manifest, status_written_at: datetime, known: Entry | None) -> Entry:
    """Keep of a job what is read again: there may be ten thousand; `known`: what was kept of it
    before.
    """
    metadata = manifest["metadata"]
    kept: dict[str, Any] = {
        name: manifest[name] for name in ("apiVersion", "kind", "status") if name in manifest
    }
    kept["metadata"] = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
    job = _parse(manifest, known.job if known else None)
    if isinstance(job, InvalidJobError):
        kept["spec"] = _time_to_live(manifest.get("spec"))
    return Entry(kept, job, status_written_at)


def _time_to_live(spec: Any) -> dict[str, Any]:
    name = "ttlSecondsAfterFinished"
    return {name: spec[name]} if isinstance(spec, Mapping) and name in spec else {}


def _parse(manifest: Manifest, known: DDPJob | InvalidJobError | None) -> DDPJob | InvalidJobError:
    try:
        return DDPJob.parse(manifest, known if isinstance(known, DDPJob) else None)
    except InvalidJobError as error:
        return type(error)(str(error))  # without the traceback, which holds on to everything


def _newer(manifest: Manifest, *, than: Manifest) -> bool:
    """Compare resource versions: integers on every API server; any other is taken as news.

    They grow through all objects of a resource, so that a job which bears the name of an earlier
    one has the later version.
    """
    new = str(manifest["metadata"].get("resourceVersion", ""))
    old = str(than["metadata"].get("resourceVersion", ""))
    if new.isdecimal() and old.isdecimal():
        return int(new) > int(old)
    return new != old
