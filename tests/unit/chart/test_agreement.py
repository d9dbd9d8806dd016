"""kustomize and Helm install the same, object by object."""

from typing import Any

import pytest

from tests.unit.chart.kustomize import build
from tests.unit.chart.rendering import (
    OPERATOR,
    Objects,
    container_of,
    pod_of,
    render,
)

KEEP = {"helm.sh/resource-policy": "keep"}


def without_namespace(installed: Objects) -> Objects:
    """Leave out the namespace, which Helm creates itself (--create-namespace)."""
    return {key: o for key, o in installed.items() if key[0] != "Namespace"}


def differences(ours: Objects, theirs: Objects) -> dict[tuple[str, str], Any]:
    return {
        key: (ours.get(key), theirs.get(key))
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
    }


def test_default_installations_are_equal() -> None:
    rendered, installed = render(), without_namespace(build())
    assert len(installed) > 10
    [definition] = [key for key in rendered if key[0] == "CustomResourceDefinition"]
    [(changed, (ours, theirs))] = differences(rendered, installed).items()
    assert changed == definition
    assert ours["metadata"].pop("annotations") == KEEP
    assert ours == theirs


def test_installations_are_equal_without_crds_keep() -> None:
    assert differences(render({"crds": {"keep": False}}), without_namespace(build())) == {}


@pytest.mark.parametrize(
    ("component", "values"),
    [
        ("admission-policy", {"admissionPolicy": {"enabled": True}}),
        ("dranet", {"dranet": True}),
        ("compute-domains", {"computeDomains": True}),
        ("gangs", {"gangs": True}),
        ("multikueue", {"multikueue": True}),
        ("priority-boost", {"priorityBoost": 10}),
        ("metrics-auth", {"metrics": {"auth": {"enabled": True}}}),
    ],
)
def test_installations_with_a_component_are_equal(component: str, values: dict[str, Any]) -> None:
    rendered = render({"crds": {"keep": False}, **values})
    assert differences(rendered, without_namespace(build(component))) == {}
    assert rendered != render({"crds": {"keep": False}})


def test_installations_for_one_namespace_are_equal() -> None:
    rendered = render({"crds": {"keep": False}, "watchNamespace": "training"})
    installed = without_namespace(build("one-namespace"))
    [(changed, (ours, theirs))] = differences(rendered, installed).items()
    assert changed == OPERATOR
    # kustomize replaces values, but no parts of arguments that may be anywhere in a list.
    assert container_of(installed)["args"].pop() == "--namespace=$(NAMESPACE)"
    assert container_of(installed).pop("env") == [{"name": "NAMESPACE", "value": "training"}]
    assert container_of(rendered)["args"].pop() == "--namespace=training"
    assert ours == theirs
    assert pod_of(rendered)["serviceAccountName"] == "ddp-operator"
