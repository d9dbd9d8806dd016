"""A CRD of another release is recognized by the fields and words that it has or lacks."""

from typing import Any

import pytest
from ddp_operator.api.schema.comparison import Difference, compare
from ddp_operator.api.schema.crd import custom_resource_definition

Json = dict[str, Any]


def schema_of(crd: Json) -> Json:
    """Return the schema of a job."""
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return schema


@pytest.fixture
def crd() -> Json:
    """This release's CRD, for tests to change."""
    return custom_resource_definition()


def test_same_crd_does_not_differ(crd: Json) -> None:
    assert compare(crd) == Difference()


def test_descriptions_rules_and_defaults_are_ignored(crd: Json) -> None:
    """Administrators may write their own descriptions, or omit rules."""
    spec = schema_of(crd)["spec"]
    del spec["x-kubernetes-validations"]
    spec["description"] = "A job."
    spec["properties"]["masterPort"]["default"] = 12345
    crd["metadata"] |= {"annotations": {"team": "ml"}, "generation": 3}
    crd["status"] = {"acceptedNames": {}}
    assert compare(crd) == Difference()


def test_older_crd_lacks_fields_and_words(crd: Json) -> None:
    schema = schema_of(crd)
    del schema["spec"]["properties"]["restart"]
    del schema["status"]["properties"]["failures"]["items"]["properties"]["rank"]
    schema["spec"]["properties"]["accelerator"]["properties"]["provisioning"]["enum"].pop()
    found = compare(crd)
    assert found.lacking == {
        "spec.restart",
        "status.failures[].rank",
        "spec.accelerator.provisioning=reservation",
    }
    assert found.unknown == frozenset()


def test_field_that_an_older_crd_keeps_as_unknown_is_not_lacking(crd: Json) -> None:
    status = schema_of(crd)["status"]
    del status["properties"]["gaps"]
    del status["properties"]["bookkeeping"]["properties"]["spares"]
    assert compare(crd) == Difference()
    del status["x-kubernetes-preserve-unknown-fields"]
    assert compare(crd) == Difference(lacking=frozenset({"status.gaps"}))


def test_newer_crd_has_unknown_fields_and_words(crd: Json) -> None:
    schema = schema_of(crd)
    novelty = {"type": "object", "properties": {"count": {"type": "integer"}}}
    schema["spec"]["properties"]["novelty"] = novelty
    schema["spec"]["properties"]["backend"]["enum"].append("ucc")
    notes = schema["status"]["properties"]["bookkeeping"]
    notes["properties"]["replacements"]["additionalProperties"]["enum"] = [1]
    found = compare(crd)
    assert found.unknown == {
        "spec.novelty",
        "spec.backend=ucc",
        "status.bookkeeping.replacements.*=1",
    }
    assert found.lacking == frozenset()


def test_renamed_field_is_lacking_and_unknown(crd: Json) -> None:
    properties = schema_of(crd)["spec"]["properties"]
    properties["renamed"] = properties.pop("suspend")
    assert compare(crd) == Difference(frozenset({"spec.suspend"}), frozenset({"spec.renamed"}))


@pytest.mark.parametrize(
    "versions",
    [[], [{"name": "v1"}], [{"name": "v1alpha1"}], [{"name": "v1alpha1", "schema": {}}]],
)
def test_crd_without_a_schema_lacks_everything(versions: list[Json]) -> None:
    found = compare({"spec": {"versions": versions}})
    assert found == Difference(lacking=frozenset({"spec", "status"}))
