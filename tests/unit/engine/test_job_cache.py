"""The cache of jobs and their parsed specs."""

import gc
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.ports import Key

from tests.unit.engine.test_reconciler import job

KEY = Key("default", "train")


def stored(version: int, *, uid: str = "u1", **spec: Any) -> dict[str, Any]:
    manifest = job(**spec)
    manifest["metadata"] |= {"resourceVersion": str(version), "uid": uid}
    return manifest


def entry_of(jobs: JobCache) -> Entry:
    entry = jobs.get(KEY)
    assert entry is not None
    return entry


def test_entry_in_use_does_not_change() -> None:
    jobs = JobCache()
    assert jobs.put(stored(1, replicas=2))
    planned_from = entry_of(jobs)
    assert jobs.put(stored(2, replicas=3))
    assert planned_from.manifest["metadata"]["resourceVersion"] == "1"
    changed = entry_of(jobs).job
    assert isinstance(changed, DDPJob)
    assert changed.spec.replicas == 3


def test_spec_is_parsed_again_only_after_a_change() -> None:
    jobs = JobCache()

    def put(version: int, **spec: Any) -> DDPJob:
        jobs.put(stored(version, **spec))
        parsed = entry_of(jobs).job
        assert isinstance(parsed, DDPJob)
        return parsed

    first, same = put(1, replicas=2), put(2, replicas=2)
    assert same.spec is first.spec
    assert same.spec_hash == first.spec_hash
    assert same.resource_version == "2"
    # Storage that was restored from a backup may give a generation a second time.
    changed = put(3, replicas=3)
    assert changed.generation == first.generation
    assert changed.spec.replicas == 3
    assert put(4, replicas=2).spec == first.spec


def test_late_response_about_an_earlier_job_is_ignored() -> None:
    jobs = JobCache()
    assert jobs.put(stored(5, uid="u2"))
    assert not jobs.put(stored(4, uid="u1"), written_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert entry_of(jobs).uid == "u2"


def test_time_of_the_last_write_is_kept_until_the_uid_changes() -> None:
    jobs = JobCache()
    written = datetime(2026, 1, 1, tzinfo=UTC)
    jobs.put(stored(2))
    for version, at in ((2, written), (3, None)):  # the watch has overtaken the first response
        assert jobs.put(stored(version), written_at=at) is (version == 3)
        assert entry_of(jobs).status_written_at == written
    jobs.put(stored(4, uid="u2"))
    assert entry_of(jobs).status_written_at < written


def test_job_that_reuses_a_name_during_a_list_is_kept() -> None:
    jobs = JobCache()
    known = jobs.uids()
    jobs.put(stored(1))
    assert jobs.prune(known, existing={}) == []
    known = jobs.uids()
    # The list is made while there is no job of that name; then the next one appears.
    assert jobs.put(stored(3, uid="u2"))
    assert jobs.prune(known, existing={}) == []
    assert jobs.uids() == {KEY: "u2"}


def test_deleted_job_is_removed_although_another_has_its_name() -> None:
    for existing in ({}, {KEY: "u2"}):
        jobs = JobCache()
        jobs.put(stored(1))
        assert jobs.prune(jobs.uids(), existing=existing) == [KEY]
        assert jobs.get(KEY) is None


def test_cache_keeps_only_fields_that_are_read_again() -> None:
    bulky = stored(1)
    bulky["metadata"] |= {
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    jobs = JobCache()
    jobs.put(bulky)
    entry = entry_of(jobs)
    assert entry.manifest.keys() == {"apiVersion", "kind", "metadata"}
    kept = bulky["metadata"].keys() - {"managedFields", "annotations"}
    assert entry.manifest["metadata"].keys() == kept
    assert "managedFields" in bulky["metadata"], "the argument is not changed"


def test_spec_of_an_invalid_job_is_kept_for_its_rejection() -> None:
    jobs = JobCache()
    jobs.put(stored(1, replicas="many", ttlSecondsAfterFinished=60))
    entry = entry_of(jobs)
    assert entry.manifest["spec"]["ttlSecondsAfterFinished"] == 60
    assert isinstance(entry.job, InvalidJobError)
    assert entry.job.__traceback__ is None, "it would keep the manifest in memory"
    assert entry.job.__context__ is None


def test_cached_job_takes_few_kilobytes() -> None:
    """Its template takes 100 bytes as JSON; the rest is the same for each job."""
    status = {
        "phase": "Running",
        "message": "all 2 pods are ready",
        "conditions": [
            {"type": type_, "status": "True", "reason": "PodsReady", "message": "2 pods exist",
             "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
            for type_ in ("PodsCreated", "Running")
        ],
        "bookkeeping": {"acceptedSpecHash": "0" * 16, "restartsWithoutProgress": 0},
        "goodput": {"pendingSeconds": 15, "accountedUntil": "2026-01-01T00:00:00Z"},
    }  # fmt: skip
    jobs, count = JobCache(), 100
    documents = []
    for i in range(count):
        manifest = stored(i + 1, uid=f"u{i}") | {"status": status}
        manifest["metadata"]["name"] = f"train-{i}"
        documents.append(json.dumps(manifest))
    jobs.put(json.loads(documents[0]))  # the first job allocates what all share
    tracemalloc.start()
    try:
        for document in documents[1:]:
            jobs.put(json.loads(document))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / (count - 1) < 10_000
