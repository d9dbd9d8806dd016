"""The CEL form of every rule against its Python form, evaluated by a CEL interpreter.

CEL sees a spec as the API server shows it, with the schema's defaults.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import cel
import pytest
from ddp_operator.api import rules
from ddp_operator.api.constants import (
    MAX_NAME_LENGTH,
)
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.rules import NAME_CEL, SPEC_RULES, TRANSITION_RULES, Rule
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.spec.template import PodTemplate
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.quantities import quantity
from hypothesis import event, given
from hypothesis import strategies as st

from tests.bad_manifests import BAD_MANIFESTS, BadManifest
from tests.generated_specs import SPECS
from tests.good_manifests import GOOD_MANIFESTS, Json, container, job, template
from tests.unit.api.test_parsing import stored

BY_RULE = [bad for bad in BAD_MANIFESTS if bad.refused_by == "cel"]
_SCHEMA: Json = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
_PROGRAMS = {rule.cel: cel.compile(rule.cel) for rule in SPEC_RULES}


def _quantity(text: str) -> Decimal:
    found = quantity(text)
    assert found is not None
    return found


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "split": lambda text, by: text.split(by),
    "indexOf": lambda text, part: text.find(part),
    "substring": lambda text, first: text[int(first) :],
    "isQuantity": lambda text: quantity(text) is not None,
    "quantity": lambda text: int(_quantity(text) * 1000),
    "compareTo": lambda one, other: (one > other) - (one < other),
}
"""Functions of the API server's CEL (cel-go's string library, Kubernetes' quantities) that the
interpreter lacks."""


def with_defaults(value: Any, schema: Json) -> Any:
    """Fill in a schema's defaults, as the API server does before it evaluates rules. A field whose
    name is a keyword of CEL has underscores there.
    """
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties: Json = schema.get("properties", {})
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return {
        "__for__" if name == "for" else name: with_defaults(item, properties.get(name, {}))
        for name, item in {**defaults, **value}.items()
    }


def cel_holds(rule: Rule, spec: Json) -> bool:
    """Evaluate a rule's CEL. It must return a boolean and no error, because users would see it."""
    value = with_defaults(spec, _SCHEMA["properties"]["spec"])
    if rule.on:
        if rule.on not in value:
            return True  # the API server evaluates only rules on existing fields
        value = value[rule.on]
    context = cel.Context({"self": value})
    for name, function in _FUNCTIONS.items():
        context.add_function(name, function)
    verdict = _PROGRAMS[rule.cel].execute(context)
    assert isinstance(verdict, bool)
    return verdict


def assert_both_forms_agree(spec: Json) -> list[Rule]:
    parsed = DDPJobSpec.model_validate(spec)
    PodTemplate.model_validate(parsed.template)
    broken = [rule for rule in SPEC_RULES if not rule.holds(parsed)]
    refused = [rule for rule in SPEC_RULES if not cel_holds(rule, spec)]
    assert {rule.message for rule in refused} <= {rule.message for rule in broken}
    assert [rule.message for rule in broken if rule.cel_sees_all] == [
        rule.message for rule in refused if rule.cel_sees_all
    ]
    return broken


@pytest.mark.parametrize("name", GOOD_MANIFESTS)
def test_good_manifest_breaks_no_rule(name: str) -> None:
    assert assert_both_forms_agree(GOOD_MANIFESTS[name]["spec"]) == []


@pytest.mark.parametrize("bad", BY_RULE, ids=lambda bad: bad.name)
def test_bad_manifest_breaks_its_rule_and_no_other(bad: BadManifest) -> None:
    broken = [rule.message for rule in assert_both_forms_agree(bad.manifest["spec"])]
    if not _name_holds(bad.manifest["metadata"]["name"]):
        broken.append(NAME_CEL[1])
    assert len(broken) == 1
    assert bad.says in broken[0]


def test_every_rule_is_broken_by_some_bad_manifest() -> None:
    said = " ".join(bad.says for bad in BY_RULE)
    for rule in SPEC_RULES:
        assert any(bad.says in rule.message for bad in BY_RULE), rule.message
    assert "metadata.name" in said


@pytest.mark.parametrize("bad", BY_RULE, ids=lambda bad: bad.name)
def test_cel_sees_what_is_wrong_with_each_bad_manifest(bad: BadManifest) -> None:
    refused = [rule.message for rule in SPEC_RULES if not cel_holds(rule, bad.manifest["spec"])]
    assert refused or not _name_holds(bad.manifest["metadata"]["name"])


@given(SPECS)
def test_both_forms_agree_on_any_spec(spec: Json) -> None:
    for rule in assert_both_forms_agree(spec):
        event(rule.message.partition(";")[0])


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
_OTHER_IMAGE = template(container(image="registry.example/trainer:2"))
_CHANGES: dict[str, tuple[Json, Json]] = {
    "replicas": ({}, {"replicas": 2}),
    "nprocPerNode": ({}, {"nprocPerNode": 2}),
    "backend": ({}, {"backend": "gloo"}),
    "masterPort": ({}, {"masterPort": 29600}),
    "statusPort": ({}, {"statusPort": 29601}),
    "template": ({}, {"template": _OTHER_IMAGE}),
    "launcher": ({}, {"launcher": "inject"}),
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


@pytest.mark.parametrize(("field", "values"), _CHANGES.items(), ids=_CHANGES)
def test_what_shapes_running_pods_changes_only_while_suspended(
    field: str, values: tuple[Json, Json]
) -> None:
    for one, other in (values, values[::-1]):
        before, after = job(**one)["spec"], job(**other)["spec"]
        (said,) = refused(before, after)
        assert said.startswith(f"spec.{field}: immutable once a pod has run")
        assert refused({**before, "suspend": True}, {**after, "suspend": True}) == []
        assert refused(before, {**after, "suspend": True}) == []
        assert refused({**before, "suspend": True}, after) == []


@pytest.mark.parametrize("values", _CHANGES.values(), ids=_CHANGES)
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
def test_what_shapes_pods_may_change_until_one_has_run(
    values: tuple[Json, Json], status: Json | None, is_fixed: bool
) -> None:
    before, after = (job(**spec)["spec"] for spec in values)
    assert len(refused(before, after, status)) == is_fixed
    assert DDPJobStatus.model_validate(status or {}).fixes_pods is is_fixed


def test_a_change_within_an_accelerator_is_one_too() -> None:
    plain, standard, spot = (
        job(accelerator={"type": "nvidia-l4", **how})["spec"]
        for how in ({}, {"provisioning": "standard"}, {"provisioning": "spot"})
    )
    (said,) = refused(plain, spot)
    assert said.startswith("spec.accelerator: immutable once")
    assert refused(plain, standard) == []


def test_the_controller_never_changes() -> None:
    plain, other = (job(**spec)["spec"] for spec in ({}, {"managedBy": "example.com/other"}))
    suspended = {**other, "suspend": True}
    for before, after in ((plain, other), (other, plain), (suspended, plain)):
        for status in (None, _HAS_RUN):
            [said] = refused(before, after, status)
            assert said == "spec.managedBy: immutable; create a new job instead"
    assert refused(other, suspended) == []
    digests = {DDPJob.parse(stored({**job(), "spec": spec})).spec_hash for spec in (plain, other)}
    assert len(digests) == 1


def test_an_elastic_job_may_have_another_size_while_it_runs() -> None:
    specs = [
        job(replicas=replicas, elastic={"minReplicas": 1, "maxReplicas": most})["spec"]
        for replicas, most in ((1, 4), (3, 4), (3, 9))
    ]
    digests = {DDPJob.parse(stored({**job(), "spec": spec})).spec_hash for spec in specs}
    assert len(digests) == 1
    assert [refused(one, other) for one in specs for other in specs] == [[]] * 9
    fixed = job(replicas=3)["spec"]
    for one, other in ((fixed, specs[1]), (specs[1], fixed)):
        (said,) = refused(one, other)
        assert said.startswith("spec.elastic: immutable once a pod has run")
    assert DDPJob.parse(stored({**job(), "spec": fixed})).spec_hash not in digests


def test_what_shapes_no_pod_may_change_at_any_time() -> None:
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
        assert refused(job(**before)["spec"], job(**{**before, name: value})["spec"]) == []


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
def test_the_server_refuses_what_would_start_pods_anew(fields: Json, changes: Json) -> None:
    """A change that gives pods another digest is refused while they run; any other is not."""
    start = {"template": _choices["template"][0]}
    manifests = [
        job(**{name: value for name, value in spec.items() if value is not None})
        for spec in (start | fields, start | fields | changes)
    ]
    digests = {DDPJob.parse(stored(manifest)).spec_hash for manifest in manifests}
    event(f"{len(digests)} digests")
    before, after = (manifest["spec"] for manifest in manifests)
    assert (refused(before, after) == []) is (len(digests) == 1)


@pytest.mark.parametrize(
    "rule", [rule for rule in SPEC_RULES if rule.on], ids=lambda rule: f"{rule.on}: {rule.cel}"
)
def test_a_default_obeys_the_rules_on_its_field_as_it_is_written(rule: Rule) -> None:
    """Otherwise the API server refuses the CRD."""
    default = _SCHEMA["properties"]["spec"]["properties"][rule.on].get("default")
    if default is not None:
        assert _PROGRAMS[rule.cel].execute(cel.Context({"self": default})) is True


def test_the_schema_carries_every_rule() -> None:
    spec = _SCHEMA["properties"]["spec"]
    for field in {rule.on for rule in SPEC_RULES}:
        node = spec["properties"][field] if field else spec
        assert node["x-kubernetes-validations"] == [
            {"rule": rule.cel, "message": rule.message} for rule in SPEC_RULES if rule.on == field
        ]
    assert _SCHEMA["x-kubernetes-validations"] == [
        {"rule": NAME_CEL[0], "message": NAME_CEL[1]},
        *(
            {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
            for rule in TRANSITION_RULES
        ),
    ]
    assert all(rule.message.startswith(f"{rule.field}: ") for rule in TRANSITION_RULES)
