"""Rules on names and on updates of a spec, by a CEL interpreter.

`tests/integration/test_crd_rules.py` compares the other rules with a real API server.
"""

from typing import Any

import cel
import pytest
from ddp_operator.api import rules
from ddp_operator.api.constants import MAX_NAME_LENGTH
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.rules import NAME_CEL, TRANSITION_RULES
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from hypothesis import event, given
from hypothesis import strategies as st

from tests.good_manifests import Json, container, job, template
from tests.unit.api.test_parsing import stored

_SCHEMA: Json = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def with_defaults(value: Any, schema: Json) -> Any:
    """Fill in a schema's defaults, as the API server does before it evaluates rules."""
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties: Json = schema.get("properties", {})
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return {
        name: with_defaults(item, properties.get(name, {}))
        for name, item in {**defaults, **value}.items()
    }


_NAME_PROGRAM = cel.compile(NAME_CEL[0])


def _name_holds(name: str) -> bool:
    verdict = _NAME_PROGRAM.execute({"self": {"metadata": {"name": name}}})
    assert isinstance(verdict, bool)
    return verdict


@given(
    st.text(alphabet="abz059-.A_", min_size=1, max_size=MAX_NAME_LENGTH + 3)
    | st.integers(1, MAX_NAME_LENGTH + 3).map(lambda length: "a" * length)
)
def test_both_forms_of_the_name_rule_agree(name: str) -> None:
    spec = DDPJobSpec.model_validate(job()["spec"])
    assert (rules.violations(name, spec) == []) is _name_holds(name)


def test_longest_host_name_is_a_dns_label() -> None:
    parsed = DDPJob.parse(stored(job("a" * MAX_NAME_LENGTH)))
    assert len(f"{parsed.name}-999999-9999") <= 63
    with pytest.raises(InvalidJobError, match="host names"):
        DDPJob.parse(stored(job("a" * (MAX_NAME_LENGTH + 1))))


_TRANSITIONS = [(cel.compile(rule.cel), rule) for rule in TRANSITION_RULES]
_COMMAND = template(container(command=["./a"]))
_OTHER_IMAGE = template(container(image="registry.example/trainer:2"))
_CHANGES: dict[str, tuple[Json, Json]] = {
    "replicas": ({}, {"replicas": 2}),
    "nprocPerNode": ({}, {"nprocPerNode": 2}),
    "backend": ({}, {"backend": "gloo"}),
    "masterPort": ({}, {"masterPort": 29600}),
    "statusPort": ({}, {"statusPort": 29601}),
    "template": ({}, {"template": _OTHER_IMAGE}),
    "launcher": ({"template": _COMMAND}, {"template": _COMMAND, "launcher": "inject"}),
    "accelerator": ({}, {"accelerator": {"type": "nvidia-l4"}}),
    "overrides": ({}, {"overrides": [{"indexes": ["0"], "nprocPerNode": 2}]}),
    "scheduling": ({}, {"scheduling": {"queueName": "team-a"}}),
    "checkpoint": ({}, {"checkpoint": {"hostPath": "/mnt"}}),
    "memoryCheckpoint": ({}, {"memoryCheckpoint": {"sizeLimit": "1Gi", "copies": 0}}),
    "elastic": ({"elastic": {}}, {"elastic": {"batch": "perRank"}}),
}
"""Two values for each field that shapes running pods."""


_HAS_RUN: Json = {"firstPodStartTime": "2026-01-01T00:00:00Z"}
_HAS_ENDED: Json = {"completionTime": "2026-01-01T00:00:00Z"}


def refused(before: Json, after: Json, status: Json | None = _HAS_RUN) -> list[str]:
    """Return the messages with which the API server refuses a change of a spec."""
    schema = _SCHEMA["properties"]["spec"]
    old, new = ({"spec": with_defaults(spec, schema)} for spec in (before, after))
    if status is not None:  # a job has no status until the operator first writes one
        old["status"] = new["status"] = status
    verdicts = [
        (program.execute({"oldSelf": old, "self": new}), rule) for program, rule in _TRANSITIONS
    ]
    assert {type(allowed) for allowed, _ in verdicts} == {bool}
    return [rule.message for allowed, rule in verdicts if not allowed]


def digests(*specs: Json) -> set[str]:
    return {DDPJob.parse(stored({**job(), "spec": spec})).spec_hash for spec in specs}


@pytest.mark.parametrize(
    ("status", "is_fixed"),
    [
        (None, False),
        ({}, False),
        ({"startTime": "2026-01-01T00:00:00Z", "attempt": 1}, False),
        (_HAS_RUN, True),
        (_HAS_ENDED, True),
        (_HAS_RUN | _HAS_ENDED, True),
    ],
)
def test_pods_are_fixed_once_one_has_run_or_the_job_ended(
    status: Json | None, is_fixed: bool
) -> None:
    assert DDPJobStatus.model_validate(status or {}).fixes_pods is is_fixed
    for values in _CHANGES.values():
        before, after = (job(**spec)["spec"] for spec in values)
        assert len(refused(before, after, status)) == is_fixed
        assert len(digests(before, after)) == 2


def test_change_within_an_accelerator_is_refused() -> None:
    plain, standard, spot = (
        job(accelerator={"type": "nvidia-l4", **how})["spec"]
        for how in ({}, {"provisioning": "standard"}, {"provisioning": "spot"})
    )
    (message,) = refused(plain, spot)
    assert message.startswith("spec.accelerator: immutable once")
    assert refused(plain, standard) == []


def test_change_of_the_controller_is_refused() -> None:
    plain, other = (job(**spec)["spec"] for spec in ({}, {"managedBy": "example.com/other"}))
    suspended = {**other, "suspend": True}
    for before, after in ((plain, other), (other, plain), (suspended, plain)):
        for status in (None, _HAS_RUN):
            [message] = refused(before, after, status)
            assert message == "spec.managedBy: immutable; create a new job instead"
    assert refused(other, suspended) == []
    assert len(digests(plain, other)) == 1


def test_running_elastic_job_may_change_its_size() -> None:
    specs = [
        job(replicas=replicas, elastic={"minReplicas": 1, "maxReplicas": most})["spec"]
        for replicas, most in ((1, 4), (3, 4), (3, 9))
    ]
    assert len(digests(*specs)) == 1
    assert [refused(one, other) for one in specs for other in specs] == [[]] * 9
    fixed = job(replicas=3)["spec"]
    for one, other in ((fixed, specs[1]), (specs[1], fixed)):
        (message,) = refused(one, other)
        assert message.startswith("spec.elastic: immutable once a pod has run")
    assert len(digests(fixed, *specs)) == 2


def test_field_that_shapes_no_pod_may_change_at_any_time() -> None:
    others: Json = {
        "restart": {"maxRestarts": 9, "rules": [{"exitCodes": [3], "action": "FailJob"}]},
        "progress": {"logPattern": r"step (?P<step>\d+)"},
        "isolation": "Job",
        "spares": 2,
        "sparesPriorityClassName": "low",
        "successPolicy": "Rank0",
        "cleanPodPolicy": "All",
        "activeDeadlineSeconds": 60,
        "progressDeadlineSeconds": 60,
        "schedulingTimeoutSeconds": 60,
        "startTimeoutSeconds": 60,
        "ttlSecondsAfterFinished": 60,
        "suspend": True,
    }
    names = {field.alias or name for name, field in DDPJobSpec.model_fields.items()}
    assert others.keys() | _CHANGES.keys() | {"managedBy"} == names
    for name, value in others.items():
        before: Json = {"spares": 1} if name == "sparesPriorityClassName" else {}
        spec = job(**before)["spec"]
        changed = {**spec, name: value}
        assert refused(spec, changed) == []
        assert len(digests(spec, changed)) == 1


_choices: dict[str, list[Any]] = {
    **{
        field: [first.get(field), second[field]]
        for field, (first, second) in _CHANGES.items()
        if field != "elastic"  # which excludes some of the others
    },
    "accelerator": [
        None,
        {"type": "nvidia-l4", "count": 2},
        {"type": "nvidia-l4", "count": 2, "provisioning": "standard"},
        {"type": "nvidia-l4", "count": 2, "provisioning": "spot"},
    ],
    "checkpoint": [None, {}, {"path": "/checkpoints"}, {"hostPath": "/mnt"}],
    "template": [template(container(command=[command])) for command in ("./a", "./b")],
    "isolation": ["None", "Job"],
}
_fields = st.fixed_dictionaries(
    {}, optional={field: st.sampled_from(values) for field, values in _choices.items()}
)
_few_fields = st.sampled_from(sorted(_choices)).flatmap(
    lambda field: st.fixed_dictionaries({field: st.sampled_from(_choices[field])})
)


@given(_fields, _few_fields)
def test_server_refuses_changes_that_would_replace_running_pods(
    fields: Json, changes: Json
) -> None:
    """A change that gives pods another digest is refused while they run; any other is not."""
    start = {"template": _choices["template"][0]}
    manifests = [
        job(**{name: value for name, value in spec.items() if value is not None})
        for spec in (start | fields, start | fields | changes)
    ]
    before, after = (manifest["spec"] for manifest in manifests)
    number = len(digests(before, after))
    event(f"{number} digests")
    assert (refused(before, after) == []) is (number == 1)
