"""The CRD on a real API server: its rules and their cost, its defaults and its lists; and PodGroups
of the server's own API group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import SPEC_RULES, TRANSITION_RULES
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
from tests.good_manifests import DEFAULTS, EXAMPLES, GOOD_MANIFESTS, Json, container, job, template
from tests.integration import pod_groups
from tests.integration.conftest import CRDS, change_crd
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kube.view import View

_DRY_RUN: Final = {"dryRun": "All"}
_Case = TypeVar("_Case")


async def problems_of(
    cases: Mapping[str, _Case], check: Callable[[_Case], Awaitable[str]]
) -> dict[str, str]:
    """Check all cases, as many at a time as the client sends requests. Return the problems found,
    by the name of the case.
    """
    answers = await asyncio.gather(*map(check, cases.values()))
    return {name: answer for name, answer in zip(cases, answers, strict=True) if answer}


async def try_to_create(admin: ApiClient, jobs: Jobs, manifest: Json) -> Json | InvalidError:
    """Return the job as the server would store it, or the server's refusal."""
    path = JOBS.path(namespace=jobs.namespace)
    try:
        stored: Json = await admin.request("POST", path, body=manifest, params=_DRY_RUN)
    except InvalidError as refusal:
        return refusal
    return stored


def refused_by(*judges: str) -> dict[str, BadManifest]:
    return {bad.name: bad for bad in BAD_MANIFESTS if bad.refused_by in judges}


@pytest.mark.usefixtures("jobs")
async def test_server_accepts_the_whole_crd(admin: ApiClient) -> None:
    """The server refuses rules if it cannot bound their cost."""
    wanted = custom_resource_definition()
    stored = await admin.request("GET", f"{CRDS}/{wanted['metadata']['name']}")
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions
    [stored_version], [version] = stored["spec"]["versions"], wanted["spec"]["versions"]
    assert stored_version["schema"] == version["schema"]


async def test_good_manifests_are_stored_unchanged(admin: ApiClient, jobs: Jobs) -> None:
    async def check(manifest: Json) -> str:
        match await try_to_create(admin, jobs, manifest):
            case InvalidError() as refusal:
                return refusal.message
            case stored:
                kept = _part(stored["spec"], like=manifest["spec"])
                return "" if kept == manifest["spec"] else f"stored as {kept}"

    assert await problems_of({**GOOD_MANIFESTS, **EXAMPLES}, check) == {}


async def test_defaults(jobs: Jobs) -> None:
    spec = (await jobs.create(job()))["spec"]
    del spec["template"]
    assert spec == DEFAULTS


async def test_bad_manifests_are_refused_with_their_messages(admin: ApiClient, jobs: Jobs) -> None:
    async def check(bad: BadManifest) -> str:
        match await try_to_create(admin, jobs, bad.manifest):
            case InvalidError() as refusal if refusal.status == 422 and bad.says in refusal.message:
                return ""
            case answer:
                return f"not {bad.says!r}: {answer}"

    assert await problems_of(refused_by("schema", "cel"), check) == {}


async def test_faults_of_pods_are_left_to_the_creation_of_pods(
    admin: ApiClient, jobs: Jobs
) -> None:
    async def check(bad: BadManifest) -> str:
        answer = await try_to_create(admin, jobs, bad.manifest)
        return answer.message if isinstance(answer, InvalidError) else ""

    assert await problems_of(refused_by("pod"), check) == {}


@settings(
    max_examples=300,
    # All examples use one namespace, and nothing is stored in it.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(spec=SPECS)
async def test_operator_and_server_judge_generated_specs_alike(
    admin: ApiClient, jobs: Jobs, spec: Json
) -> None:
    parsed = DDPJobSpec.model_validate(spec)
    broken = {rule.message for rule in SPEC_RULES if not rule.holds(parsed)}
    answer = await try_to_create(admin, jobs, {**job(), "spec": spec})
    refusal = answer.message if isinstance(answer, InvalidError) else ""
    by_server = {rule.message for rule in SPEC_RULES if rule.message in refusal}
    assert bool(refusal) is bool(by_server), refusal
    assert by_server <= broken
    seen_by_cel = {rule.message for rule in SPEC_RULES if rule.cel_sees_all}
    assert seen_by_cel & broken == seen_by_cel & by_server


async def test_unknown_fields_are_dropped_except_those_of_pods(jobs: Jobs) -> None:
    manifest = job(replica=2)
    manifest["spec"]["template"]["spec"]["fieldOfTomorrow"] = {"a": 1}
    spec = (await jobs.create(manifest))["spec"]
    assert "replica" not in spec
    assert spec["template"]["spec"]["fieldOfTomorrow"] == {"a": 1}


async def test_native_pod_group_is_created_and_resized(admin: ApiClient, jobs: Jobs) -> None:
    if not await check_served(admin, pod_groups.NATIVE):
        pytest.skip(f"this server does not offer {pod_groups.NATIVE}: Kubernetes 1.37 does")
    operator = View(admin, jobs.namespace).cluster
    path = pod_groups.NATIVE.path(namespace=jobs.namespace, name="job")

    async def group_of(stored: Json) -> Json:
        [needed] = prerequisites(DDPJob.parse(stored))
        await operator.apply(needed.manifest)
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


_LATER_FIELD = template(fieldOfTomorrow={"a": 1})
_WITHOUT_IT = {"spec": {"fieldOfTomorrow": None}}
_OVERRIDE = {"indexes": ["0"], "nprocPerNode": 2}

IMMUTABLE: tuple[tuple[str, Json, Json], ...] = (
    ("fewer replicas", {"replicas": 2}, {"replicas": 1}),
    ("replicas by default", {"replicas": 2}, {"replicas": None}),
    ("processes", {}, {"nprocPerNode": 2}),
    ("the backend", {}, {"backend": "gloo"}),
    ("rank 0's port", {}, {"masterPort": 29600}),
    ("the status port", {}, {"statusPort": 29601}),
    ("the launcher", {"template": template(container(command=["a"]))}, {"launcher": "inject"}),
    ("the image", {}, {"template": template(container(image="registry.example/trainer:2"))}),
    ("a pod's field", {}, {"template": template(terminationGracePeriodSeconds=5)}),
    ("a field that is added", {}, {"template": _LATER_FIELD}),
    ("a field that is removed", {"template": _LATER_FIELD}, {"template": _WITHOUT_IT}),
    ("an accelerator", {}, {"accelerator": {"type": "nvidia-l4"}}),
    ("another accelerator", {"accelerator": {"type": "a"}}, {"accelerator": {"type": "b"}}),
    ("no accelerator", {"accelerator": {"type": "nvidia-l4"}}, {"accelerator": None}),
    ("an override", {}, {"overrides": [_OVERRIDE]}),
    (
        "another override",
        {"overrides": [_OVERRIDE]},
        {"overrides": [{**_OVERRIDE, "nprocPerNode": 3}]},
    ),
    ("a queue", {}, {"scheduling": {"queueName": "team-a"}}),
    ("another queue", {"scheduling": {"queueName": "a"}}, {"scheduling": {"queueName": "b"}}),
    (
        "nearer pods",
        {"scheduling": {"topology": {"level": "block"}}},
        {"scheduling": {"topology": {"level": "host"}}},
    ),
    ("checkpoints", {}, {"checkpoint": {"hostPath": "/mnt"}}),
    ("memory checkpoints", {}, {"memoryCheckpoint": {"sizeLimit": "1Gi", "copies": 0}}),
    ("an elastic group", {}, {"elastic": {}}),
    ("the batch of an elastic group", {"elastic": {}}, {"elastic": {"batch": "perRank"}}),
)
"""Fields that shape pods: a spec, and a change of it."""

_BEFORE_ANY_RUN: dict[str, Json] = {
    "before its status": {},
    "while its first pods start": {"phase": "Starting", "startTime": _TIME, "attempt": 1},
}


def _refused(name: str, before: Json, change: Json) -> Update:
    [field] = change
    return Update(name, before, change, f"spec.{field}: immutable once a pod has run")


UPDATES = (
    *(_refused(*case) for case in IMMUTABLE),
    *(
        Update(f"{name}, while suspended", {**before, "suspend": True}, change)
        for name, before, change in IMMUTABLE
        if "None" not in repr(change)  # what is removed cannot be compared
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
    Update(
        "the controller of a suspended job",
        {"suspend": True},
        {"managedBy": "example.com/other"},
        "spec.managedBy: immutable; create a new job instead",
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


async def test_updates_are_accepted_or_refused_with_their_messages(
    admin: ApiClient, jobs: Jobs
) -> None:
    refusals = " ".join(update.refused for update in UPDATES)
    fields = {rule.message.partition(":")[0] for rule in TRANSITION_RULES}
    assert [field for field in fields if f"{field}: immutable" not in refusals] == []

    async def check(numbered: tuple[int, Update]) -> str:
        number, update = numbered
        name = f"job-{number}"
        before = await jobs.create(job(**update.before), name=name)
        if update.status:
            await write_status(admin, jobs, update.status, name=name)
        path, body = JOBS.path(namespace=jobs.namespace, name=name), {"spec": update.change}
        try:
            after = await admin.request(
                "PATCH", path, body=body, content_type=MERGE_PATCH, params=_DRY_RUN
            )
        except InvalidError as refusal:
            expected = (
                refusal.status == 422 and update.refused and update.refused in refusal.message
            )
            return "" if expected else refusal.message
        if update.refused:
            return "accepted"
        generations = (before["metadata"]["generation"], after["metadata"]["generation"])
        stored = _part(after["spec"], like=update.change)
        correct = stored == update.change and generations == (1, 2)
        return "" if correct else f"stored as {stored}, generations {generations}"

    numbered = {update.name: (number, update) for number, update in enumerate(UPDATES)}
    assert len(numbered) == len(UPDATES)
    assert await problems_of(numbered, check) == {}


async def write_status(admin: ApiClient, jobs: Jobs, status: Json, *, name: str = "job") -> Json:
    """Write a job's status as the operator does. Return it as stored."""
    path = f"{JOBS.path(namespace=jobs.namespace, name=name)}/status"
    answer = await admin.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)
    stored: Json = answer["status"]
    return stored


async def test_status_is_stored_as_written(admin: ApiClient, jobs: Jobs) -> None:
    await jobs.create(job())
    later = {
        **FULL_STATUS,
        **{"dreams": 1, "bookkeeping": {**FULL_STATUS["bookkeeping"], "dreams": 1}},
    }
    unknown = {**later, "progress": {**FULL_STATUS["progress"], "dreams": 1}}
    assert await write_status(admin, jobs, unknown) == later
    stored = await jobs.get()
    assert stored["status"] == later
    assert stored["metadata"]["generation"] == 1, "a status is no change of the spec"
    assert await jobs.status() == DDPJobStatus.model_validate(FULL_STATUS)


async def test_second_condition_of_a_type_is_refused(admin: ApiClient, jobs: Jobs) -> None:
    await jobs.create(job())
    with pytest.raises(InvalidError, match=r"status\.conditions\[1\]: Duplicate value"):
        await write_status(admin, jobs, {"conditions": [CONDITION, CONDITION]})


async def test_status_of_any_length_is_stored(admin: ApiClient, jobs: Jobs) -> None:
    """A limit could keep the operator from recording the end of a job."""
    await jobs.create(job())
    words = {"message": "é" * 10_000, "ready": "1000000/1000000 pods"}
    assert await write_status(admin, jobs, words) == words


async def test_job_from_before_the_rules_can_fail_and_be_corrected(
    admin: ApiClient, jobs: Jobs
) -> None:
    """An upgraded server has jobs that its new rules would refuse."""
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


async def test_spec_and_status_are_written_separately(admin: ApiClient, jobs: Jobs) -> None:
    manifest = job()
    manifest["status"] = {"attempt": 7}
    assert "status" not in await jobs.create(manifest)
    path = JOBS.path(namespace=jobs.namespace, name="job")
    both = {"spec": {"replicas": 5}, "status": {"attempt": 7}}
    stored = await admin.request("PATCH", f"{path}/status", body=both, content_type=MERGE_PATCH)
    assert (stored["spec"]["replicas"], stored["status"]["attempt"]) == (1, 7)


def _part(value: Any, *, like: Any) -> Any:
    """Return the parts of `value` that are in `like` too, which leaves out defaults."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {name: _part(value[name], like=like[name]) for name in like if name in value}
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_part(item, like=other) for item, other in zip(value, like, strict=True)]
    return value
