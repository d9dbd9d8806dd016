"""The cache of jobs and their parsed specs."""

import base64
import gc
import json
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.rules import gpu_limit, wants_host_network
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.engine.metrics import choose, text_of
from ddp_operator.ports import Key

from tests.good_manifests import GOOD_MANIFESTS, container, gpus, template
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


class TestInvalidSpec:
    def cache(self, *versions: dict[str, Any]) -> Entry:
        jobs = JobCache()
        for manifest in versions:
            jobs.put(manifest)
        return entry_of(jobs)

    @pytest.mark.parametrize("size", [0, 200_000], ids=["small", "packed"])
    def test_last_valid_spec_stays(self, size: int) -> None:
        long = template(container(env=[{"name": "V", "value": "x" * size}]))
        valid: dict[str, Any] = {"template": long, "restart": {"maxRestarts": 7}, "replicas": 4}
        before = self.cache(stored(1, **valid))
        broken = [stored(version, **valid | {"replicas": 0}) for version in (2, 3)]
        broken[1]["metadata"] |= {"generation": 2}
        broken[1]["status"] = {"attempt": 3}
        entry = self.cache(stored(1, **valid), *broken)
        assert str(entry.problem).startswith("spec.replicas: ")
        known, now = before.job, entry.job
        assert isinstance(known, DDPJob)
        assert isinstance(now, DDPJob)
        assert (now.spec, now.spec_hash) == (known.spec, known.spec_hash)
        assert (now.generation, now.resource_version, now.status.attempt) == (2, "3", 3)

    @pytest.mark.parametrize("good", GOOD_MANIFESTS.values(), ids=GOOD_MANIFESTS)
    def test_last_valid_spec_is_the_same_after_an_invalid_edit(self, good: dict[str, Any]) -> None:
        valid = {**stored(1), "spec": good["spec"]}
        broken = {**stored(2), "spec": {**good["spec"], "replicas": "many"}}
        before, after = self.cache(valid).job, self.cache(valid, broken).job
        assert isinstance(before, DDPJob)
        assert isinstance(after, DDPJob)
        assert (after.spec, after.spec_hash) == (before.spec, before.spec_hash)

    @pytest.mark.parametrize("suspend", [True, False])
    def test_suspend_is_taken_from_an_invalid_spec(self, suspend: bool) -> None:
        entry = self.cache(stored(1, suspend=not suspend), stored(2, replicas=0, suspend=suspend))
        assert isinstance(entry.job, DDPJob)
        assert (entry.job.spec.suspend, entry.job.spec.replicas) == (suspend, 2)

    def test_corrected_spec_applies(self) -> None:
        entry = self.cache(stored(1, replicas=2), stored(2, replicas=0), stored(3, replicas=3))
        assert isinstance(entry.job, DDPJob)
        assert (entry.job.spec.replicas, entry.problem) == (3, None)

    @pytest.mark.parametrize("before", [[], [stored(1, uid="u0")]], ids=["none", "another job"])
    def test_nothing_is_known_without_a_valid_spec(self, before: list[dict[str, Any]]) -> None:
        entry = self.cache(*before, stored(2, replicas=0, ttlSecondsAfterFinished=9))
        assert isinstance(entry.job, InvalidJobError)
        assert entry.problem is entry.job
        assert entry.manifest["spec"] == {"ttlSecondsAfterFinished": 9}


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
        "goodput": {"pendingSeconds": 15, "startingSeconds": 15},
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


NOISE = base64.b85encode(Random(1).randbytes(200_000)).decode()
UNKNOWN: dict[str, Callable[[int], Any]] = {
    "lists": lambda size: [[] for _ in range(size // 3)],
    "objects": lambda size: [{} for _ in range(size // 3)],
    "fields": lambda size: {f"{i:x}": {} for i in range(size // 10)},
    "text": lambda size: "\u00e9" * (size // 2),
    "noise": lambda size: NOISE[:size],
}
"""Values that the template keeps, by their size as JSON."""


@pytest.mark.parametrize("size", [500, 5_000, 20_000, 50_000, 250_000])
@pytest.mark.parametrize("name", UNKNOWN)
def test_job_of_any_spec_takes_at_most_50_kb_in_the_cache(name: str, size: int) -> None:
    document = json.dumps(
        stored(1, suspend=True, template={**template(), "x": UNKNOWN[name](size)})
    )
    jobs = JobCache()
    jobs.put(json.loads(document))
    gc.freeze()  # objects of other tests take a second to look through
    tracemalloc.start()
    for number in range(4):
        another = json.loads(document)
        another["metadata"]["name"] = f"job-{number}"
        jobs.put(another)
    del another
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.unfreeze()
    assert kept < 4 * 50_000
    found = entry_of(jobs).job
    assert isinstance(found, DDPJob) or "ConfigMap" in str(found)


def test_large_job_is_whole_when_it_is_read() -> None:
    large = template(container(resources=gpus(gpu=4)), hostNetwork=True, x=["a" * 100] * 900)
    overrides = [{"indexes": ["1"], "template": {"spec": {"hostNetwork": False, "y": [0] * 900}}}]
    document = stored(1, template=large, overrides=overrides, replicas=2)
    jobs = JobCache()
    jobs.put(document)
    entry = entry_of(jobs)
    parsed, outline = DDPJob.parse(document), entry.outline
    assert isinstance(outline, DDPJob)
    assert entry.job == parsed
    assert outline.spec.template != parsed.spec.template
    for read in (gpu_limit, wants_host_network):
        wanted = [read(spec) for spec, _ in kinds(parsed.spec)]
        assert [read(spec) for spec, _ in kinds(outline.spec)] == wanted
    assert text_of([outline], now=outline.created) == text_of([parsed], now=outline.created)
    assert choose([entry], limit=1, now=outline.created).jobs == [outline]


def test_large_job_stays_whole_after_a_change_of_its_status() -> None:
    large = {**template(), "x": ["a"] * 900}
    jobs = JobCache()
    jobs.put(stored(1, template=large))
    jobs.put(stored(2, template=large) | {"status": {"phase": "Running"}})
    found = entry_of(jobs).job
    assert isinstance(found, DDPJob)
    assert (found.spec.template, found.status.phase) == (large, "Running")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0] * 10_001, "spec: more than 10000 objects, lists and other values; move"),
        (NOISE, "bytes when compressed, more than 40960; move long texts into a ConfigMap"),
    ],
)
def test_spec_that_takes_too_much_memory_is_refused(value: Any, words: str) -> None:
    jobs = JobCache()
    jobs.put(stored(1, template={**template(), "x": value}))
    found = entry_of(jobs).job
    assert isinstance(found, InvalidJobError)
    assert words in str(found)


def test_long_script_with_many_commas_is_no_list() -> None:
    jobs = JobCache()
    jobs.put(stored(1, template=template(container(args=["print(1, 2, 3)\n" * 9_000]))))
    assert isinstance(entry_of(jobs).job, DDPJob)


def test_error_of_an_invalid_spec_is_short() -> None:
    jobs = JobCache()
    unknown: dict[str, Any] = {"x" * 50_000 + str(i): 0 for i in range(4)}
    jobs.put(stored(1, **unknown))
    found = entry_of(jobs).job
    assert isinstance(found, InvalidJobError)
    assert len(str(found)) <= 4096
