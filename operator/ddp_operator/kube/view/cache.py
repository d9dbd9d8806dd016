"""A cache of the objects of one resource, fed by two sources that race with each other.

A watch reports every change, but late. Responses to our own writes are available at once, but only
for those writes. A reconciler that did not see its last write would repeat it. So both sources feed
this cache, and resourceVersions decide which state is newer. They grow with every change of a
resource and compare as integers. The API promises this since KEP-5504, and it was true of every API
server on etcd before.

There is no I/O here, so that every order of arrival can be tested.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ddp_operator.ports import Key, Manifest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object: its identity, its version, its group, and its projection."""

    key: Key
    uid: str
    version: int
    group: Key | None
    value: T


class ObjectCache(Generic[T]):
    """The newest known state of each object, and the objects of each group.

    `project` turns a manifest into what is kept of it. `group` returns the object's owner, so that
    `members` costs only as much as the group has members. Both may raise on a malformed object:
    methods that take a manifest pass that on and change nothing. Every method that changes objects
    returns the groups with changed projections.
    """

    def __init__(
        self, *, project: Callable[[Manifest], T], group: Callable[[Manifest], Key | None]
    ) -> None:
        self._project = project
        self._group = group
        self._entries: dict[Key, Entry[T]] = {}
        self._members: dict[Key, dict[Key, Entry[T]]] = {}
        # UIDs of objects known to be gone while older news of them may still arrive, each with its
        # last known version. A UID never returns, so no later news about it counts.
        self._gone: dict[str, int] = {}
        self.version = 0
        """resourceVersion up to which everything has been delivered."""

    def __len__(self) -> int:
        return len(self._entries)

    def members(self, group: Key) -> list[T]:
        """Return the projections of the objects of one group."""
        return [entry.value for entry in self._members.get(group, {}).values()]

    def groups(self) -> list[Key]:
        """Return the groups that have objects."""
        return [group for group, members in self._members.items() if members]

    def get(self, key: Key) -> Entry[T] | None:
        """Return the entry of one object."""
        return self._entries.get(key)

    def entry_of(self, manifest: Manifest) -> Entry[T]:
        """Project a manifest without storing it."""
        metadata: Mapping[str, Any] = manifest["metadata"]
        return Entry(
            key=Key.of(manifest),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            group=self._group(manifest),
            value=self._project(manifest),
        )

    def offer(self, manifest: Manifest) -> set[Key]:
        """Store the server's response to a write, unless the watch has the same or newer news.

        Anything that the watch has passed is either in the cache, in this or a newer state, or
        gone.
        """
        if int(manifest["metadata"]["resourceVersion"]) <= self.version:
            return set()
        return self._store_if_newer(self.entry_of(manifest))

    def forget(self, key: Key, *, uid: str) -> set[Key]:
        """Record that a write proved the object gone: older news must not restore it."""
        entry = self._entries.get(key)
        if entry is None or entry.uid != uid:
            return set()
        self._gone[uid] = entry.version
        return self._remove(entry)

    def changed(self, manifest: Manifest) -> set[Key]:
        """Apply a watch's ADDED or MODIFIED."""
        self._advance(manifest)
        metadata = manifest["metadata"]
        known = self._entries.get(Key.of(manifest))
        is_echo = known is not None and known.uid == metadata["uid"]
        if known is not None and is_echo and int(metadata["resourceVersion"]) <= known.version:
            return set()  # our own write: not worth a projection
        return self._store_if_newer(self.entry_of(manifest))

    def deleted(self, manifest: Manifest) -> set[Key]:
        """Apply a watch's DELETED; its resourceVersion is that of the deletion."""
        self._advance(manifest)
        metadata = manifest["metadata"]
        self._gone.pop(metadata["uid"], None)
        entry = self._entries.get(Key.of(manifest))
        if entry is None or entry.version > int(metadata["resourceVersion"]):
            return set()  # already gone, or replaced by another object of that name
        return self._remove(entry)

    def bookmark(self, manifest: Manifest) -> None:
        """Apply a watch's BOOKMARK: everything up to this version has been delivered."""
        self._advance(manifest)

    def replace(
        self, listed: Iterable[Entry[T]], *, version: int, malformed: Iterable[Key] = ()
    ) -> set[Key]:
        """Store a complete list as of `version`. Objects that it lacks are gone unless they are
        newer.

        `malformed` are objects that exist but could not be projected: their old entries stay.
        """
        if version < self.version:
            # Versions went backwards: the server's storage was restored from a backup, and
            # comparing with the cache means nothing.
            touched = {entry.group for entry in self._entries.values() if entry.group is not None}
            self._entries.clear()
            self._members.clear()
            self._gone.clear()
        else:
            touched = set()
        self.version = version
        present = set(malformed)
        uids = set()
        for entry in listed:
            present.add(entry.key)
            uids.add(entry.uid)
            touched |= self._store_if_newer(entry)
        for entry in list(self._entries.values()):
            if entry.key not in present and entry.version <= version:
                touched |= self._remove(entry)
        for uid, last in list(self._gone.items()):
            if uid not in uids and last <= version:
                del self._gone[uid]
        return touched

    def _advance(self, manifest: Manifest) -> None:
        self.version = max(self.version, int(manifest["metadata"]["resourceVersion"]))

    def _store_if_newer(self, entry: Entry[T]) -> set[Key]:
        if entry.uid in self._gone:
            return set()
        old = self._entries.get(entry.key)
        if old is not None and old.uid != entry.uid:
            # Of two objects with one name the earlier is gone, even if news about it still arrives.
            earlier = min(old, entry, key=lambda each: each.version)
            self._gone[earlier.uid] = earlier.version
        if old is not None and entry.version <= old.version:
            return set()
        is_same = old is not None and (old.uid, old.group) == (entry.uid, entry.group)
        touched = self._remove(old) if old is not None and not is_same else set()
        self._entries[entry.key] = entry
        if entry.group is not None:
            self._members.setdefault(entry.group, {})[entry.key] = entry
            touched.add(entry.group)
        return set() if is_same and old is not None and old.value == entry.value else touched

    def _remove(self, entry: Entry[T]) -> set[Key]:
        del self._entries[entry.key]
        if entry.group is None:
            return set()
        members = self._members[entry.group]
        del members[entry.key]
        if not members:
            del self._members[entry.group]
        return {entry.group}
