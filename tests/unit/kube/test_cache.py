"""Cases of the object cache that random histories rarely reach, see `test_cache_histories`."""

from typing import Any

import pytest
from ddp_operator.kube.view.cache import ObjectCache
from ddp_operator.ports import Key

JOB = Key("ns", "job")
OTHER = Key("ns", "other")
POD = Key("ns", "pod")


def pod(
    version: int, *, uid: str = "u1", name: str = "pod", job: str | None = "job"
) -> dict[str, Any]:
    labels = {"job": job} if job else {}
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def project(manifest: Any) -> int:
    """Return the projection in these tests: the version."""
    if manifest.get("malformed"):
        raise ValueError("malformed")
    return int(manifest["metadata"]["resourceVersion"])


def group(manifest: Any) -> Key | None:
    job = manifest["metadata"]["labels"].get("job")
    return Key(manifest["metadata"]["namespace"], job) if job else None


@pytest.fixture
def cache() -> ObjectCache[int]:
    return ObjectCache(project=project, group=group)


def test_offered_object_is_visible_before_the_watch_reports_it(
    cache: ObjectCache[int],
) -> None:
    assert cache.offer(pod(11)) == {JOB}
    assert cache.members(JOB) == [11]
    assert cache.changed(pod(11)) == set()
    assert cache.changed(pod(12)) == {JOB}
    assert cache.members(JOB) == [12]


def test_known_version_is_not_projected_again() -> None:
    projected: list[int] = []

    def counted(manifest: Any) -> int:
        projected.append(project(manifest))
        return projected[-1]

    cache = ObjectCache(project=counted, group=group)
    cache.offer(pod(11))
    cache.changed(pod(11))
    cache.changed(pod(10))
    assert projected == [11]
    assert cache.version == 11


def test_change_outside_the_projection_touches_no_group() -> None:
    cache = ObjectCache(project=lambda manifest: manifest["metadata"]["labels"], group=group)
    cache.changed(pod(11))
    assert cache.changed(pod(12)) == set()
    assert cache.changed(pod(13, job="other")) == {JOB, OTHER}
    assert cache.changed(pod(14, job="other", uid="u2")) == {OTHER}, "it was another object"
    assert cache.offer(pod(13, job="other", uid="u2")) == set()
    cache.deleted(pod(15, job="other", uid="u2"))
    assert cache.members(OTHER) == []


def test_bookmark_advances_the_version(cache: ObjectCache[int]) -> None:
    cache.bookmark({"metadata": {"resourceVersion": "20"}})
    assert cache.offer(pod(19)) == set()
    assert cache.offer(pod(21)) == {JOB}


def test_deletion_of_an_object_keeps_its_successor(cache: ObjectCache[int]) -> None:
    cache.changed(pod(10, uid="old"))
    cache.offer(pod(13, uid="new"))
    assert cache.deleted(pod(12, uid="old")) == set()
    assert cache.members(JOB) == [13]


def test_list_before_a_forgotten_object_does_not_return_it(
    cache: ObjectCache[int],
) -> None:
    cache.replace([], version=5)
    cache.offer(pod(12))
    cache.forget(POD, uid="u1")
    cache.replace([], version=10)  # as of before the object was created
    assert cache.changed(pod(12)) == set()
    assert cache.members(JOB) == []


def test_late_responses_about_earlier_objects_are_ignored(
    cache: ObjectCache[int],
) -> None:
    cache.offer(pod(4, uid="u2"))
    assert cache.offer(pod(2, uid="u1")) == set()
    cache.offer(pod(6, uid="u3"))
    assert cache.forget(POD, uid="u3") == {JOB}
    for late in (pod(1, uid="u1"), pod(3, uid="u1"), pod(5, uid="u2")):
        assert cache.offer(late) == set()
    assert cache.members(JOB) == []


def test_record_of_deleted_objects_is_bounded(cache: ObjectCache[int]) -> None:
    cache.changed(pod(10))
    cache.forget(POD, uid="u1")
    cache.deleted(pod(11))
    cache.changed(pod(12, name="other", uid="u2"))
    cache.forget(Key("ns", "other"), uid="u2")
    cache.replace([], version=20)
    assert cache._gone == {}


def test_changed_label_moves_the_object_to_another_group(
    cache: ObjectCache[int],
) -> None:
    cache.changed(pod(10))
    assert cache.changed(pod(11, job="other")) == {JOB, OTHER}
    assert (cache.members(JOB), cache.members(OTHER)) == ([], [11])
    assert cache.changed(pod(12, job=None)) == {OTHER}
    assert (cache.members(OTHER), len(cache)) == ([], 1)
    assert cache.deleted(pod(13, job=None)) == set()
    assert len(cache) == 0


def test_versions_are_compared_as_numbers(cache: ObjectCache[int]) -> None:
    cache.changed(pod(99))
    assert cache.changed(pod(100)) == {JOB}
    assert cache.members(JOB) == [100]


def test_malformed_object_keeps_its_last_good_state(cache: ObjectCache[int]) -> None:
    cache.changed(pod(10))
    with pytest.raises(ValueError, match="malformed"):
        cache.changed({**pod(11), "malformed": True})
    assert cache.members(JOB) == [10]
    assert cache.version == 11
    assert cache.replace([], version=12, malformed=[POD]) == set()
    assert cache.members(JOB) == [10]


def test_restored_backup_replaces_everything(cache: ObjectCache[int]) -> None:
    cache.replace([cache.entry_of(pod(900))], version=1000)
    touched = cache.replace([cache.entry_of(pod(400, uid="u9", job="other"))], version=500)
    assert touched == {JOB, OTHER}
    assert (cache.members(JOB), cache.members(OTHER)) == ([], [400])
    assert cache.version == 500
