"""Random histories of a server, of our writes to it, and of a watch that is behind both.

The model is the truth: a revision counter, the objects, and a log. The client learns of it in three
ways of different speed: the watch in order but late, lists as snapshots that are stored later, and
the responses to our own writes in any order.
"""

from collections.abc import Callable
from typing import Any

from ddp_operator.kube.view.cache import Entry, ObjectCache
from ddp_operator.ports import Key
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.kube.test_cache import group, project

names = st.sampled_from(["a", "b", "c"])
jobs = st.sampled_from(["job", "other", None])


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache: ObjectCache[int] = ObjectCache(project=project, group=group)
        self.revision = 0
        self.uids = 0
        self.alive: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.delivered = 0
        self.watching = False
        self.snapshot: tuple[int, int, list[Entry[int]]] | None = None
        self.answers: list[Callable[[], set[Key]]] = []
        # Versions that our writes proved: at least this version of that UID has been seen.
        self.proved: dict[str, int] = {}
        self.proved_gone: set[str] = set()
        self.touched: set[Key] = set()
        self.seen_before: dict[Key, list[int]] = {}

    # The server.

    def _record(self, kind: str, name: str, uid: str, job: str | None) -> dict[str, Any]:
        self.revision += 1
        manifest = {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": uid,
                "resourceVersion": str(self.revision),
                "labels": {"job": job} if job else {},
            }
        }
        self.log.append((kind, manifest))
        if kind == "DELETED":
            del self.alive[name]
        else:
            self.alive[name] = manifest
        return manifest

    def _write(self, name: str, job: str | None) -> dict[str, Any]:
        if name in self.alive:
            return self._record("MODIFIED", name, self.alive[name]["metadata"]["uid"], job)
        self.uids += 1
        return self._record("ADDED", name, f"u{self.uids}", job)

    def _end(self, name: str) -> dict[str, Any]:
        manifest = self.alive[name]
        job = manifest["metadata"]["labels"].get("job")
        return self._record("DELETED", name, manifest["metadata"]["uid"], job)

    @rule(name=names, job=jobs)
    def someone_writes(self, name: str, job: str | None) -> None:
        self._write(name, job)

    @rule(name=names)
    def someone_deletes(self, name: str) -> None:
        if name in self.alive:
            self._end(name)

    # Our writes; their responses arrive at any time.

    @rule(name=names, job=jobs)
    def we_write(self, name: str, job: str | None) -> None:
        manifest = self._write(name, job)

        def answered() -> set[Key]:
            self.proved[manifest["metadata"]["uid"]] = max(
                self.proved.get(manifest["metadata"]["uid"], 0),
                int(manifest["metadata"]["resourceVersion"]),
            )
            return self.cache.offer(manifest)

        self.answers.append(answered)

    @rule(name=names)
    def we_delete(self, name: str) -> None:
        """A DELETE with a Status as response, or 404 if the object is already gone."""
        entry = self.cache.get(Key("ns", name))
        if entry is None:
            return
        if name in self.alive and self.alive[name]["metadata"]["uid"] == entry.uid:
            self._end(name)

        def answered() -> set[Key]:
            self.proved_gone.add(entry.uid)
            return self.cache.forget(entry.key, uid=entry.uid)

        self.answers.append(answered)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.answers) - 1))
        self.touched |= self.answers.pop(index)()

    # The watch and the list.

    @precondition(lambda self: self.watching and self.delivered < len(self.log))
    @rule()
    def an_event_arrives(self) -> None:
        kind, manifest = self.log[self.delivered]
        self.delivered += 1
        apply = self.cache.deleted if kind == "DELETED" else self.cache.changed
        self.touched |= apply(manifest)

    @precondition(lambda self: self.watching and self.delivered == len(self.log))
    @rule()
    def a_bookmark_arrives(self) -> None:
        self.cache.bookmark({"metadata": {"resourceVersion": str(self.revision)}})

    @rule()
    def a_list_begins(self) -> None:
        self.watching = False
        entries = [self.cache.entry_of(manifest) for manifest in self.alive.values()]
        self.snapshot = (self.revision, len(self.log), entries)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def a_list_ends(self) -> None:
        assert self.snapshot is not None
        version, position, entries = self.snapshot
        self.touched |= self.cache.replace(entries, version=version)
        self.delivered, self.watching, self.snapshot = position, True, None

    # Invariants.

    def _members(self) -> dict[Key, list[int]]:
        owners = [Key("ns", "job"), Key("ns", "other")]
        return {owner: sorted(self.cache.members(owner)) for owner in owners}

    @invariant()
    def never_older_than_an_answered_write(self) -> None:
        for name in ("a", "b", "c"):
            entry = self.cache.get(Key("ns", name))
            if entry is not None:
                assert entry.version >= self.proved.get(entry.uid, 0)
                assert entry.uid not in self.proved_gone
        # A write with a response is visible while it is the latest.
        for name, manifest in self.alive.items():
            uid = manifest["metadata"]["uid"]
            if self.proved.get(uid) == int(manifest["metadata"]["resourceVersion"]):
                entry = self.cache.get(Key("ns", name))
                assert entry is not None
                assert entry.uid == uid

    @invariant()
    def every_visible_change_is_reported(self) -> None:
        members = self._members()
        for owner, seen in members.items():
            if seen != self.seen_before.get(owner, []):
                assert owner in self.touched
        self.seen_before, self.touched = members, set()

    def teardown(self) -> None:
        """Once everything has arrived, the cache equals the server."""
        for answered in self.answers:
            self.touched |= answered()
        if self.snapshot is None and not self.watching:
            self.a_list_begins()
        if self.snapshot is not None:
            self.a_list_ends()
        while self.delivered < len(self.log):
            self.an_event_arrives()
        self.never_older_than_an_answered_write()
        self.every_visible_change_is_reported()
        cached = {name: self.cache.get(Key("ns", name)) for name in ("a", "b", "c")}
        assert {name: entry.version for name, entry in cached.items() if entry is not None} == {
            name: int(manifest["metadata"]["resourceVersion"])
            for name, manifest in self.alive.items()
        }
        assert self.cache._gone == {}


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
