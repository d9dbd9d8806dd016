from copy import deepcopy
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.rules import NAME_CEL, SPEC_RULES
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.bad_manifests import BAD_MANIFESTS, BadManifest
from tests.good_manifests import GOOD_MANIFESTS, Json, job

RULES = [NAME_CEL[1], *(rule.message for rule in SPEC_RULES)]


def stored(manifest: Json) -> Json:
    """Add the fields that the API server adds to a new object."""
    manifest = deepcopy(manifest)
    manifest["metadata"] |= {
        "namespace": "research",
        "uid": "7d1c",
        "generation": 3,
        "resourceVersion": "41",
        "creationTimestamp": "2026-03-01T12:00:00Z",
    }
    return manifest


def refusal_of(manifest: Json) -> str:
    with pytest.raises(InvalidJobError) as refusal:
        DDPJob.parse(stored(manifest))
    return str(refusal.value)


@pytest.mark.parametrize("name", GOOD_MANIFESTS)
def test_good_manifest_is_parsed(name: str) -> None:
    manifest = GOOD_MANIFESTS[name]
    parsed = DDPJob.parse(stored(manifest))
    assert parsed.name == manifest["metadata"]["name"]
    assert parsed.spec.template == manifest["spec"]["template"]


@pytest.mark.parametrize("bad", BAD_MANIFESTS, ids=lambda bad: bad.name)
def test_bad_manifest_breaks_one_rule_or_is_left_to_its_pods(bad: BadManifest) -> None:
    if bad.refused_by == "pod":
        assert DDPJob.parse(stored(bad.manifest)).spec.template == bad.manifest["spec"]["template"]
        return
    refusal = refusal_of(bad.manifest)
    assert bad.operator_says
    assert bad.operator_says in refusal
    if bad.refused_by == "cel":
        assert len([rule for rule in RULES if rule in refusal]) == 1


def test_each_rule_is_broken_by_a_bad_manifest() -> None:
    names = [bad.name for bad in BAD_MANIFESTS]
    assert len(set(names)) == len(names)
    by_rule = [bad.says for bad in BAD_MANIFESTS if bad.refused_by == "cel"]
    assert [rule for rule in RULES if not any(says in rule for says in by_rule)] == []


def test_message_names_all_faults() -> None:
    refusal = refusal_of(
        job(replicas=0, masterPort="x", template={"spec": {"containers": [{}]}}),
    )
    assert "spec.replicas: " in refusal
    assert "spec.masterPort: " in refusal


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"restart": {"maxRetries": 3}}, "spec.restart.maxRetries: unknown field; remove"),
        (
            {"restart": {"rules": [{"messageRegex": "(", "action": "FailJob"}]}},
            "spec.restart.rules[0].messageRegex: not a regular express",
        ),
        ({"progress": {"logPattern": "(?P<step>"}}, "spec.progress.logPattern: not a regular exp"),
        (
            {"progress": {"logPattern": r"(?P<step>\d+) (?P<lr>\S+)"}},
            "spec.progress.logPattern: unknown group lr; use step, totalSteps, loss, accuracy, sa",
        ),
        (
            {"progress": {"logPattern": "(?P<step>" + "a" * 300 + ")"}},
            "spec.progress.logPattern: string should have at most 256",
        ),
    ],
)
def test_refusal_names_what_only_the_parser_sees(spec: Json, says: str) -> None:
    assert refusal_of(job(**spec)).startswith(says)


@pytest.mark.parametrize(
    ("indexes", "says"),
    [
        ([["0"], ["1-2"]], "from its lower end to its higher one, such as 2-5: 1-2"),
        ([["3"]], "such as 2-5: 3"),
        ([["1-0"]], "such as 2-5: 1-0"),
        ([["0-1"], ["1"]], "name each pod in one override, once: 1"),
        ([["1", "0", "0"]], "name each pod in one override, once: 0"),
    ],
)
def test_invalid_index_is_named(indexes: list[list[str]], says: str) -> None:
    overrides = [{"indexes": one, "nprocPerNode": 2} for one in indexes]
    refusal = refusal_of(job(replicas=2, overrides=overrides))
    assert refusal.startswith("spec.overrides: ")
    assert refusal.endswith(says)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            {"template": {"spec": {"containers": None}}},
            "spec.overrides[1].template: results in an invalid pod template: "
            "spec.template.spec.containers: field required",
        ),
        (
            {"template": {"spec": {"containers": [{"image": "x"}]}}},
            "spec.template.spec.containers[0].name: field required",
        ),
        (
            {"template": {"spec": {"restartPolicy": "Always"}}},
            "spec.overrides[1] as applied to its pods: spec.template.spec.restartPolicy: remove it",
        ),
        (
            {"accelerator": {"type": "nvidia-l4", "count": 2}},
            "spec.overrides[1] as applied to its pods: spec.nprocPerNode: more processes than spec",
        ),
    ],
)
def test_pods_of_an_override_obey_the_rules(override: Json, says: str) -> None:
    overrides = [{"indexes": ["0"], "nprocPerNode": 1}, {"indexes": ["1"], **override}]
    assert says in refusal_of(job(replicas=3, nprocPerNode=4, overrides=overrides))


@pytest.mark.parametrize("name", ["priorityClassName", "preemptionPolicy", "schedulerName"])
def test_override_that_no_native_gang_may_have_is_refused(name: str) -> None:
    overrides = [{"indexes": ["1"], "template": {"spec": {name: "other"}}}]
    refused = job(replicas=2, overrides=overrides, scheduling={"gang": "native"})
    assert f"spec.overrides[0].template.spec.{name}: Kubernetes' scheduler" in refusal_of(refused)
    DDPJob.parse(stored(job(replicas=2, overrides=overrides, scheduling={"gang": "kai"})))


def test_invalid_status_is_named() -> None:
    manifest = stored(job()) | {"status": {"attempt": "many"}}
    with pytest.raises(InvalidJobError, match=r"status\.attempt: input should be a valid integer"):
        DDPJob.parse(manifest)


def test_status_fields_of_another_release_are_ignored() -> None:
    manifest = stored(job()) | {"status": {"attempt": 2, "oracle": {"step": 7}}}
    assert DDPJob.parse(manifest).status.attempt == 2


def test_metadata_is_parsed() -> None:
    parsed = DDPJob.parse(stored(job()))
    assert str(parsed.key) == "research/job"
    assert (parsed.uid, parsed.generation, parsed.resource_version) == ("7d1c", 3, "41")
    assert parsed.created.isoformat() == "2026-03-01T12:00:00+00:00"
    assert not parsed.deleting
    manifest = stored(job())
    manifest["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert DDPJob.parse(manifest).deleting


def test_spec_hash_ignores_defaults_and_the_order_of_keys() -> None:
    """`test_rules.py` compares the hash with the fields that the API server lets change."""
    base = job(replicas=2, accelerator={"type": "nvidia-l4"})["spec"]
    accelerator = {"type": "nvidia-l4", "count": 1, "network": "none"}
    written = {"nprocPerNode": "auto", "checkpoint": {"path": "/checkpoints"}}
    reordered = dict(reversed(base.items()))
    specs = (base, {**base, **written, "accelerator": accelerator}, reordered)
    assert len({DDPJob.parse(stored(job(**spec))).spec_hash for spec in specs}) == 1


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


@given(st.data())
def test_any_stored_value_is_parsed_or_refused_with_its_field(data: st.DataObject) -> None:
    """Any value in any place never raises another exception, which would stop the operator's
    worker.
    """
    manifest = stored(data.draw(st.sampled_from(list(GOOD_MANIFESTS.values()))))
    manifest["status"] = {"attempt": 1, "replacements": {"0": 1}, "conditions": []}
    where = data.draw(st.sampled_from(_paths({k: manifest[k] for k in ("spec", "status")})))
    holder: Any = manifest
    for part in where[:-1]:
        holder = holder[part]
    holder[where[-1]] = data.draw(_anything)
    refusal, pod = "", None
    try:
        pod = manifests.pod(DDPJob.parse(manifest), Identity(index=0, attempt=0))
    except InvalidJobError as error:
        refusal = str(error)
    assert pod is not None or refusal.startswith(("spec", "status"))
