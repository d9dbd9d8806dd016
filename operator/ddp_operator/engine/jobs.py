"""The jobs as last seen: from the watch, and from the answers to our own writes."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.ports import Key, Manifest

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Entry:
    """One job: as stored, and as understood."""

    manifest: Manifest
    job: DDPJob | InvalidJobError
    status_written_at: datetime = field(default=_NEVER)

    @property
    def uid(self) -> str:
        """The job's UID."""
        uid: str = self.manifest["metadata"]["uid"]
        return uid


class JobCache:
    """All jobs by name, never older than what was put in last."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """The job of this name, None when it does not exist."""
        return self._entries.get(key)

    def keys(self) -> set[Key]:
        """The names of all jobs."""
        return set(self._entries)

    def put(self, manifest: Manifest) -> bool:
        """Take in a job as stored; say whether that was news.

        An echo or a late report of an older state changes nothing: our own writes put their
        answers in at once, and the watch tells of them afterwards.
        """
        metadata = manifest["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        known = self._entries.get(key)
        if known is not None and known.uid == metadata["uid"]:
            if not _newer(manifest, than=known.manifest):
                return False
            known.manifest, known.job = manifest, _parse(manifest)
        else:
            self._entries[key] = Entry(manifest, _parse(manifest))
        return True

    def remove(self, key: Key, *, uid: str | None = None) -> None:
        """Forget a job that is gone; with a UID, only that very job."""
        known = self._entries.get(key)
        if known is not None and uid in (None, known.uid):
            del self._entries[key]


def _parse(manifest: Manifest) -> DDPJob | InvalidJobError:
    try:
        return DDPJob.parse(manifest)
    except InvalidJobError as error:
        return error


def _newer(manifest: Manifest, *, than: Manifest) -> bool:
    """Compare resource versions: integers on every API server; any other is taken as news."""
    new = str(manifest["metadata"].get("resourceVersion", ""))
    old = str(than["metadata"].get("resourceVersion", ""))
    if new.isdecimal() and old.isdecimal():
        return int(new) > int(old)
    return new != old
