"""Content of jobs and pods, up to the 1.5 MB that an API server accepts: it is read fast, raises no
error, and little of it is kept.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import NOTES, DDPJobStatus
from ddp_operator.api.values.limits import MAX_SPEC_BYTES
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.metrics.totals import Totals
from ddp_operator.engine.status_patch import as_stored, status_patch
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import PodToken
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.good_manifests import container, template
from tests.unit.cpu_budget import loops
from tests.unit.job.builders import later, running_job, stored_job

MB = 1_400_000
"""About as much as etcd accepts of one object (--max-request-bytes), less its metadata."""
Json = dict[str, Any]


def nested(depth: int) -> Json:
    """Return objects nested in objects."""
    inner: Json = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def entry_of(document: Json) -> Entry:
    """Return a job's entry after the watch has reported it."""
    cache = JobCache()
    cache.put(document)
    [entry] = cache.entries.values()
    return entry


def reconciled(document: Json, pods: list[PodState]) -> DDPJobStatus:
    """Do what a reconcile does with a stored job, except the writes; return its status."""
    entry = entry_of(document)
    if isinstance(entry.job, DDPJob):
        planned = plan(entry.job, pods, later(60))
        for identity in planned.create[:1]:
            orjson.dumps(manifests.pod(entry.job, identity, token=PodToken(key="k", plain="t")))
    else:
        planned = reject(entry.manifest, entry.job, pods, later(60))
    orjson.dumps(status_patch(entry.manifest.get("status") or {}, as_stored(planned.status)))
    return planned.status


MOUNTS = 512
"""The limit in the CRD."""
SPECS: dict[str, Callable[[int], Json]] = {
    "mounts": lambda size: template(
        container(volumeMounts=[{"mountPath": "/m" * (size // 1024 - 20), "name": "m"}] * MOUNTS)
    ),
    "tolerations": lambda size: template(tolerations=[{}] * (size // 3)),
    "fields of tomorrow": lambda size: template(x=[["a"] * 10] * (size // 42)),
    "names": lambda size: {**template(), "x": {f"k{i}": i for i in range(size // 16)}},
    "numbers": lambda size: {**template(), "x": [0] * (size // 2)},
    "objects": lambda size: {**template(), "x": [{}] * (size // 3)},
    "text": lambda size: {**template(), "x": "\u00e9" * (size // 2)},
    "annotations": lambda size: {
        **template(),
        "metadata": {"annotations": {f"k{i}": "" for i in range(size // 12)}},
    },
    "variables": lambda size: template(
        *(
            container(f"c{i}", env=[{"name": "v", "value": "x" * (size // 2048 - 40)}] * 128)
            for i in range(16)
        )
    ),
}


OF_MANY_VALUES = {
    *("tolerations", "fields of tomorrow", "names", "numbers", "objects", "annotations"),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, MAX_SPEC_BYTES - 8192) for name in SPECS),
        *((name, 18_000) for name in sorted(OF_MANY_VALUES)),
        *(("names", MB), ("text", MB)),
    ],
)
def test_large_spec_takes_little_time_and_memory(name: str, size: int) -> None:
    document = stored_job(template=SPECS[name](size))
    assert loops(lambda: reconciled(document, [])) < 1
    status = reconciled(document, [])
    assert len(orjson.dumps(entry_of(document).manifest)) < 1024
    too_many = name in OF_MANY_VALUES and size > 18_000
    assert (status.phase == "Failed") == (size > MAX_SPEC_BYTES or too_many)
    if status.phase == "Failed":
        assert status.message.startswith("spec: ")
        assert "ConfigMap" in status.message


@pytest.mark.parametrize(("depth", "fails"), [(240, False), (255, True), (9000, True)])
def test_job_with_a_spec_nested_too_deep_fails(depth: int, *, fails: bool) -> None:
    document = stored_job(template={**template(), "x": nested(depth)})
    status = reconciled(document, [])
    assert (status.reason == "InvalidSpec") is fails
    assert ("spec: cannot be written as JSON" in status.message) is fails


def test_only_the_first_of_many_mistakes_are_named() -> None:
    document = stored_job(template=template(tolerations=[0] * 5000))
    assert loops(lambda: reconciled(document, [])) < 1
    message = reconciled(document, []).message
    assert message.startswith("spec.template.spec.tolerations[0]: ")
    assert message.endswith("; and 4980 more")


WHEN = "2026-03-01T12:00:00Z"
FAILURE = {
    **{"time": WHEN, "attempt": 0, "index": 0, "pod": "p", "reason": "r", "class": "Application"},
    "message": "m" * 1000,
}
STATUSES: dict[str, Json] = {
    "bookkeeping, object": {"bookkeeping": {"replacements": {str(i): 1 for i in range(MB // 12)}}},
    "bookkeeping, list": {"bookkeeping": {"replacing": [1] * (MB // 2)}},
    "ranges": {"completedIndexes": "1," * (MB // 2)},
    "objects": {"failures": [FAILURE] * (MB // 1100)},
    "invalid objects": {"conditions": [{}] * (MB // 3)},
    "text": {"message": "m" * MB},
    "gaps": {"gaps": [{"reason": "Silent", "since": WHEN, "nodeRanks": "0-9"}] * (MB // 70)},
    "names": {"excludedNodes": ["n"] * (MB // 4)},
}


@pytest.mark.parametrize("name", STATUSES)
def test_large_status_takes_little_time_and_is_cut(name: str) -> None:
    job, pods = running_job()
    document = stored_job(status={**as_stored(job.status), **STATUSES[name]})
    # The largest statuses are read once, and a decision may be undone once.
    assert loops(lambda: reconciled(document, pods)) < 2
    after = as_stored(reconciled(document, pods))
    assert len(orjson.dumps(after)) < MB / 4
    again = stored_job(status=after)
    assert loops(lambda: reconciled(again, pods)) < 1


_NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, -1, 2**31, 2**53, 10**30])
_TIMES = st.sampled_from(
    [WHEN, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"]
) | st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)).map(
    lambda moment: moment.isoformat()
)
_JUNK = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.floats() | st.text(max_size=20) | _TIMES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_FIELDS = sorted(NOTES) + [str(field.alias) for field in DDPJobStatus.model_fields.values()]


_OF_FAILURES = {key: st.just(value) for key, value in FAILURE.items()} | {
    **{"time": _TIMES, "attempt": _NUMBERS, "index": _NUMBERS, "exitCode": _NUMBERS}
}
_OF_CONDITIONS = {
    "type": st.sampled_from(["PodsCreated", "Running", "Restarting", "Suspended"]),
    "status": st.sampled_from(["True", "False"]),
    **{"reason": st.text(max_size=5), "lastTransitionTime": _TIMES},
}
_BY_NAME = st.dictionaries(st.sampled_from(["0", "1", "-1", "x", ""]), _NUMBERS, max_size=3)
_STEPS = st.fixed_dictionaries({"step": _NUMBERS, "updatedAt": _TIMES, "time": _TIMES})
_TYPED: dict[str, st.SearchStrategy[Any]] = {
    "goodput": st.fixed_dictionaries({"lostSeconds": _NUMBERS}),
    "stopwatch": st.fixed_dictionaries({"accountedUntil": _TIMES}),
    **{"progress": _STEPS, "checkpoint": _STEPS},
    "replacements": _BY_NAME,
    "failures": st.lists(st.fixed_dictionaries(_OF_FAILURES), max_size=2),
    "conditions": st.lists(st.fixed_dictionaries(_OF_CONDITIONS), max_size=3),
}


def _values(name: str) -> st.SearchStrategy[Any]:
    """Junk, and sometimes a value of the field's type."""
    of_times = name.endswith(("Time", "Since"))
    return _TYPED.get(name, _TIMES if of_times else _NUMBERS) | _JUNK


_NOTES = st.fixed_dictionaries({}, optional={name: _values(name) for name in NOTES})
_STATUSES = st.fixed_dictionaries(
    {}, optional={name: _values(name) for name in _FIELDS} | {"bookkeeping": _NOTES | _JUNK}
)


@settings(max_examples=30)
@given(junk=_STATUSES, suspend=st.booleans(), deadline=st.sampled_from([None, 1, 10**8]))
def test_any_status_can_be_planned_with_and_stored(
    junk: Json, *, suspend: bool, deadline: int | None
) -> None:
    job, pods = running_job()
    spec: Json = {"suspend": suspend} | ({"activeDeadlineSeconds": deadline} if deadline else {})
    document = stored_job(status={**as_stored(job.status), **junk}, **spec)
    for existing in (pods, pods[:1], []):
        after = reconciled(document, existing)
        assert as_stored(after) == as_stored(DDPJobStatus.model_validate(as_stored(after)))
        for _ in range(4):  # further decisions follow
            after = reconciled({**document, "status": as_stored(after)}, existing)


def stored_pod(**status: Any) -> Json:
    """Return a pod of the job, as the API server has it."""
    job, _ = running_job()
    manifest = manifests.pod(job, Identity(0, 0), token=PodToken(key="k", plain="t"))
    manifest["metadata"] |= {"uid": "p", "resourceVersion": "1"}
    return {**manifest, "status": {"phase": "Running", **status}}


def ended(message: str, **fields: Any) -> Json:
    """Return the status of a pod with a trainer that ended with this message."""
    terminated = {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": WHEN}
    state = {"terminated": {**terminated, **fields}}
    return {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]}


PODS: dict[str, Json] = {
    "ranks": ended("".join(f"[rank{i}]: aError:\n" for i in range(MB // 18))),
    "exceptions": ended("aError: \n" * (MB // 9)),
    "JSON": ended('{"":' * (MB // 4)),
    "reason": ended("x", reason="r" * MB),
    "waiting": {
        "containerStatuses": [
            {
                "name": "trainer",
                "state": {"waiting": {"reason": "ErrImagePull", "message": "m" * MB}},
            }
        ]
    },
    "evicted": {"phase": "Failed", "reason": "r" * (MB // 2), "message": "m" * (MB // 2)},
    "containers": {"containerStatuses": [{"name": "c", "state": {}, "ready": True}] * (MB // 40)},
    "conditions": {"conditions": [{"type": f"t{i}", "status": "True"} for i in range(MB // 36)]},
}


@pytest.mark.parametrize("name", PODS)
def test_large_pod_status_takes_little_time_and_memory(name: str) -> None:
    job, pods = running_job()
    manifest = stored_pod(**PODS[name])

    def status() -> DDPJobStatus:
        return plan(job, [project(manifest), *pods[1:]], later(60)).status

    assert loops(status) < 1
    assert len(repr(project(manifest))) < 16_384
    assert len(orjson.dumps(as_stored(status()))) < 16_384


@pytest.mark.parametrize("seconds", [0, 2**40, 2**63 - 1])
def test_pod_may_have_any_grace_period(seconds: int) -> None:
    manifest = stored_pod()
    manifest["spec"] = {**manifest["spec"], "terminationGracePeriodSeconds": seconds}
    manifest["metadata"] |= {"deletionTimestamp": WHEN, "deletionGracePeriodSeconds": seconds}
    job, pods = running_job()
    state = project(manifest)
    assert state.deleting
    assert plan(job, [state, *pods[1:]], later(60)).decided


def test_slow_restart_rules_are_evaluated_once() -> None:
    rules = [
        {"messageRegex": "(?:.?){200}" + letter, "action": "Ignore"}
        for letter in "bcdefghijklmnopq"
    ]
    document = stored_job(restart={"rules": rules})
    manifest = stored_pod(**ended("\u00e9" * 2048))
    _, pods = running_job()
    reconciled(document, [project(manifest), *pods[1:]])
    assert loops(lambda: reconciled(document, [project(manifest), *pods[1:]])) < 1


def test_invented_reasons_share_one_metric_after_the_first_100() -> None:
    metrics = Metrics()
    job, pods = running_job()
    before = job.status
    for i in range(150):
        manifest = stored_pod(**ended("x", reason=f"reason {i}"))
        after = plan(job, [project(manifest), *pods[1:]], later(60)).status
        metrics.recorded(before=before, after=after)
    text = metrics.text(Totals(), queued=0, leading=True)
    lines = [line for line in text.splitlines() if line.startswith("ddp_operator_failures_total{")]
    assert len({line.partition('reason="')[2].partition('"')[0] for line in lines}) == 101
    assert sum(float(line.split()[-1]) for line in lines) == 150
