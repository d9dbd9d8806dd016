"""The CRD on a real API server: its rules and their cost, its defaults and its lists; and PodGroups
of the server's own API group.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import SPEC_RULES
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.pods.prerequisites import prerequisites
from ddp_operator.kube import ApiClient, check_served
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import InvalidError
from hypothesis import HealthCheck, given, settings

from tests.bad_manifests import BAD_MANIFESTS, BadManifest
from tests.full_status import CONDITION, FULL_STATUS
from tests.generated_specs import SPECS
from tests.good_manifests import DEFAULTS, GOOD_MANIFESTS, Json, container, job, template
from tests.integration import pod_groups
from tests.integration.conftest import CRDS, change_crd
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kube.view import View


@pytest.mark.usefixtures("jobs")
async def test_the_crd_is_taken_whole(admin: ApiClient) -> None:
    """With rules whose cost the server could not bound it would be refused."""
    wanted = custom_resource_definition()
    stored = await admin.request("GET", f"{CRDS}/{wanted['metadata']['name']}")
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions
    [version], [asked] = stored["spec"]["versions"], wanted["spec"]["versions"]
    assert version["schema"] == asked["schema"]


@pytest.mark.parametrize("name", GOOD_MANIFESTS)
async def test_a_good_manifest_is_stored_as_it_is(jobs: Jobs, name: str) -> None:
    manifest: Json = GOOD_MANIFESTS[name]
    stored = await jobs.create(manifest)
    assert _part(stored["spec"], like=manifest["spec"]) == manifest["spec"]


async def test_defaults(jobs: Jobs) -> None:
    spec = (await jobs.create(job()))["spec"]
    del spec["template"]
    assert spec == DEFAULTS


@pytest.mark.parametrize(
    "bad", [bad for bad in BAD_MANIFESTS if bad.refused_by != "pod"], ids=lambda bad: bad.name
)
async def test_a_bad_manifest_is_refused_at_once(jobs: Jobs, bad: BadManifest) -> None:
    with pytest.raises(InvalidError) as refusal:
        await jobs.create(bad.manifest)
    assert refusal.value.status == 422
    assert bad.says in refusal.value.message


@pytest.mark.parametrize(
    "bad", [bad for bad in BAD_MANIFESTS if bad.refused_by == "pod"], ids=lambda bad: bad.name
)
async def test_what_is_wrong_with_pods_is_not_the_rules_affair(
    jobs: Jobs, bad: BadManifest
) -> None:
    assert await jobs.create(bad.manifest)


@settings(
    max_examples=300,
    # All examples are asked of one namespace, in which none is stored.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(spec=SPECS)
async def test_the_operator_judges_generated_specs_as_the_server_does(
    admin: ApiClient, jobs: Jobs, spec: Json
) -> None:
    manifest = {**job(), "spec": spec}
    parsed = DDPJobSpec.model_validate(spec)
    broken = [rule.message for rule in SPEC_RULES if not rule.holds(parsed)]
    path = JOBS.path(namespace=jobs.namespace)
    try:
        await admin.request("POST", path, body=manifest, params={"dryRun": "All"})
    except InvalidError as refusal:
        refused = refusal.message
    else:
        refused = ""
    said = [rule.message for rule in SPEC_RULES if rule.message in refused]
    assert bool(refused) is bool(said), refused
    assert set(said) <= set(broken)
    seen_by_cel = {rule.message for rule in SPEC_RULES if rule.cel_sees_all}
    assert seen_by_cel & set(broken) == seen_by_cel & set(said)


async def test_unknown_fields_are_dropped_but_for_those_of_pods(jobs: Jobs) -> None:
    manifest = job(replica=2)
    manifest["spec"]["template"]["spec"]["fieldOfTomorrow"] = {"a": 1}
    spec = (await jobs.create(manifest))["spec"]
    assert "replica" not in spec
    assert spec["template"]["spec"]["fieldOfTomorrow"] == {"a": 1}


async def test_a_gang_of_kubernetes_own_is_made_and_resized(admin: ApiClient, jobs: Jobs) -> None:
    if not await check_served(admin, pod_groups.NATIVE):
        pytest.skip(f"this server does not offer {pod_groups.NATIVE}: Kubernetes 1.37 does")
    ours = View(admin, jobs.namespace).cluster
    path = pod_groups.NATIVE.path(namespace=jobs.namespace, name="job")

    async def group_of(stored: Json) -> Json:
        [needed] = prerequisites(DDPJob.parse(stored))
        await ours.apply(needed.manifest)
        group: Json = await admin.request("GET", path)
        return group

    two = await jobs.create(job(replicas=2, suspend=True, scheduling={"gang": "native"}))
    three = {**two, "spec": {**two["spec"], "replicas": 3}}
    first = await group_of(two)
    assert first["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert first["spec"]["disruptionMode"] == {"single": {}}
    assert await group_of(two) == first
    resized = await group_of(three)
    assert resized["metadata"]["uid"] == first["metadata"]["uid"]
    assert resized["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}


_TIME = "2026-01-01T00:00:00Z"
_HAS_RUN = {"firstPodStartTime": _TIME}


@dataclass(frozen=True)
class Update:
    """A change of a job's spec, and the server's answer."""

    name: str
    before: Json
    change: Json
    refused: str = ""
    """The message; empty: it is accepted."""
    status: Json = field(default_factory=lambda: _HAS_RUN)
    """The job's status at that moment."""


_OF_TOMORROW = template(fieldOfTomorrow={"a": 1})
_WITHOUT_IT = {"spec": {"fieldOfTomorrow": None}}

IMMUTABLE: tuple[tuple[str, Json, Json], ...] = (
    ("fewer replicas", {"replicas": 2}, {"replicas": 1}),
    ("replicas by default", {"replicas": 2}, {"replicas": None}),
    ("processes", {}, {"nprocPerNode": 2}),
    ("the backend", {}, {"backend": "gloo"}),
    ("rank 0's port", {}, {"masterPort": 29600}),
    ("the status port", {}, {"statusPort": 29601}),
    ("the image", {}, {"template": template(container(image="registry.example/trainer:2"))}),
    ("a pod's field", {}, {"template": template(terminationGracePeriodSeconds=5)}),
    ("a field that is new", {}, {"template": _OF_TOMORROW}),
    ("a field that goes", {"template": _OF_TOMORROW}, {"template": _WITHOUT_IT}),
    ("an accelerator", {}, {"accelerator": {"type": "nvidia-l4"}}),
    ("another accelerator", {"accelerator": {"type": "a"}}, {"accelerator": {"type": "b"}}),
    ("no accelerator", {"accelerator": {"type": "nvidia-l4"}}, {"accelerator": None}),
    ("an override", {}, {"overrides": [{"indexes": ["0"], "nprocPerNode": 2}]}),
    (
        "another override",
        {"overrides": [{"indexes": ["0"], "nprocPerNode": 2}]},
        {"overrides": [{"indexes": ["0"], "nprocPerNode": 3}]},
    ),
    ("a queue", {}, {"scheduling": {"queueName": "team-a"}}),
    (
        "another queue",
        {"scheduling": {"queueName": "team-a"}},
        {"scheduling": {"queueName": "team-b"}},
    ),
    (
        "nearer pods",
        {"scheduling": {"topology": {"level": "block"}}},
        {"scheduling": {"topology": {"level": "host"}}},
    ),
    ("checkpoints", {}, {"checkpoint": {"hostPath": "/mnt"}}),
    ("a group of any size", {}, {"elastic": {}}),
    ("whose batch stays", {"elastic": {}}, {"elastic": {"batch": "perRank"}}),
)
"""What shapes the pods: before, and a change of it."""


_BEFORE_ANY_RUN: dict[str, Json] = {
    "before its status": {},
    "while its first pods start": {"phase": "Starting", "startTime": _TIME, "attempt": 1},
}


def _refused(name: str, before: Json, change: Json) -> Update:
    [field] = change
    message = f"spec.{field}: immutable once a pod has run"
    return Update(name, before, change, message)


UPDATES = (
    *(_refused(*case) for case in IMMUTABLE),
    *(
        Update(f"{name}, while suspended", {**before, "suspend": True}, change)
        for name, before, change in IMMUTABLE
        if "None" not in repr(change)  # what is gone cannot be compared
    ),
    *(
        Update(f"{name}, {when}", before, change, status=status)
        for name, before, change in IMMUTABLE
        for when, status in _BEFORE_ANY_RUN.items()
        if "None" not in repr(change)
    ),
    Update(
        "the image of a job that ended before it ran",
        {},
        {"template": template(container(image="registry.example/trainer:2"))},
        "spec.template: immutable once a pod has run or the job has finished",
        status={"completionTime": _TIME},
    ),
    Update("replicas with the suspension", {"replicas": 2}, {"replicas": 3, "suspend": True}),
    Update(
        "replicas with the resumption",
        {"replicas": 2, "suspend": True},
        {"replicas": 3, "suspend": False},
    ),
    Update("replicas of an elastic job", {"replicas": 2, "elastic": {}}, {"replicas": 3}),
    Update("more at most", {"elastic": {"maxReplicas": 2}}, {"elastic": {"maxReplicas": 3}}),
    Update(
        "more replicas than at most",
        {"replicas": 2, "elastic": {"maxReplicas": 2}},
        {"replicas": 3},
        "spec.elastic.maxReplicas: fewer than spec.replicas",
    ),
    Update("suspension", {}, {"suspend": True}),
    Update("resumption", {"suspend": True}, {"suspend": False}),
    Update("more patience", {}, {"activeDeadlineSeconds": 60, "restart": {"maxRestarts": 9}}),
    Update(
        "a rule between fields",
        {"suspend": True},
        {"statusPort": 29500},
        "spec.statusPort: must differ from spec.masterPort",
    ),
)


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
async def test_an_update(admin: ApiClient, jobs: Jobs, update: Update) -> None:
    before = await jobs.create(job(**update.before))
    if update.status:
        await write_status(admin, jobs, update.status)
    if update.refused:
        with pytest.raises(InvalidError) as refusal:
            await jobs.set_spec(**update.change)
        assert refusal.value.status == 422
        assert update.refused in refusal.value.message
        assert (await jobs.get())["spec"] == before["spec"]
        return
    await jobs.set_spec(**update.change)
    after = await jobs.get()
    assert _part(after["spec"], like=update.change) == update.change
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1


async def write_status(admin: ApiClient, jobs: Jobs, status: Json) -> Json:
    """Write the status of the namespace's `job` as the operator does; returns it as stored."""
    path = f"{JOBS.path(namespace=jobs.namespace, name='job')}/status"
    stored = await admin.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)
    found: Json = stored["status"]
    return found


async def test_a_status_is_stored_as_it_is_written(admin: ApiClient, jobs: Jobs) -> None:
    await jobs.create(job())
    of_tomorrow = {
        **FULL_STATUS,
        **{"dreams": 1, "bookkeeping": {**FULL_STATUS["bookkeeping"], "dreams": 1}},
    }
    unknown = {**of_tomorrow, "progress": {**FULL_STATUS["progress"], "dreams": 1}}
    assert await write_status(admin, jobs, unknown) == of_tomorrow
    stored = await jobs.get()
    assert stored["status"] == of_tomorrow
    assert stored["metadata"]["generation"] == 1, "a status is no change of what is wanted"
    assert await jobs.status() == DDPJobStatus.model_validate(FULL_STATUS)


async def test_a_condition_of_a_type_is_the_only_one(admin: ApiClient, jobs: Jobs) -> None:
    await jobs.create(job())
    with pytest.raises(InvalidError, match=r"status\.conditions\[1\]: Duplicate value"):
        await write_status(admin, jobs, {"conditions": [CONDITION, CONDITION]})


async def test_the_operators_words_are_never_too_long(admin: ApiClient, jobs: Jobs) -> None:
    """Nothing of a status is bounded but its shape: a job's end can always be told."""
    await jobs.create(job())
    words = {"message": "é" * 10_000, "ready": "1000000/1000000 pods"}
    assert await write_status(admin, jobs, words) == words


async def test_a_job_from_before_the_rules_can_be_told_of_and_mended(
    admin: ApiClient, jobs: Jobs
) -> None:
    """A server that was upgraded has jobs that its new rules would not let in."""
    await change_crd(admin, with_rules=False)
    try:
        await jobs.create(job(statusPort=29500))
    finally:
        await change_crd(admin, with_rules=True)
    failed = {"phase": "Failed", "reason": "InvalidSpec"}
    assert await write_status(admin, jobs, failed) == failed
    await jobs.annotate(restart_requested="now")
    with pytest.raises(InvalidError, match=r"spec\.statusPort: must differ"):
        await jobs.set_spec(activeDeadlineSeconds=60)
    await jobs.set_spec(statusPort=29501, suspend=True)


async def test_a_status_does_not_change_the_spec_nor_a_spec_the_status(
    admin: ApiClient, jobs: Jobs
) -> None:
    manifest = job()
    manifest["status"] = {"attempt": 7}
    assert "status" not in await jobs.create(manifest)
    path = JOBS.path(namespace=jobs.namespace, name="job")
    both = {"spec": {"replicas": 5}, "status": {"attempt": 7}}
    stored = await admin.request("PATCH", f"{path}/status", body=both, content_type=MERGE_PATCH)
    assert (stored["spec"]["replicas"], stored["status"]["attempt"]) == (1, 7)


def _part(value: Any, *, like: Any) -> Any:
    """Return what of `value` stands in `like` too: without the defaults."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {name: _part(value[name], like=like[name]) for name in like if name in value}
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_part(item, like=other) for item, other in zip(value, like, strict=True)]
    return value
