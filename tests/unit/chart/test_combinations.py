"""Values together: each pair of them renders to objects that a server could take."""

import itertools
import re
from typing import Any, Final

import helm_python as helm
import pytest

from tests.unit.chart.rendering import Json, container_of, everything
from tools.chart.generated import CHART

_TOKEN: Final = {"authorization": {"credentials": {"name": "token", "key": "token"}}}
CHOICES: Final[dict[str, Json]] = {
    "one-namespace": {"watchNamespace": "training"},
    "single": {"replicas": 1, "leaderElection": False, "podDisruptionBudget": False},
    "no-crd": {"crds": {"enabled": False}, "userRoles": False},
    "bounded": {"admissionPolicy": {"enabled": True, "hostPaths": ["/a"]}, "isolation": "None"},
    "auth": {"metrics": {"auth": {"enabled": True}, "monitor": {"endpoint": _TOKEN}}},
    "pods": {"metrics": {"monitor": {"kind": "PodMonitor"}, "alerts": {"enabled": True}}},
    "service": {"metrics": {"monitor": {"kind": "ServiceMonitor"}, "dashboard": {"enabled": True}}},
    "gangs": {"gangs": True, "multikueue": True},
    "boosts": {"priorityBoost": 5},
    "fabrics": {"dranet": True, "computeDomains": True, "sideCars": {"tcpxo": "m/a:1"}},
    "placed": {"nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": {}}, "tolerations": [{}]},
    "bare": {"resources": None, "topologySpreadConstraints": []},
    "marked": {"extraLabels": {"a": "b"}, "extraAnnotations": {"c": "d"}},
    "extra": {"extraArgs": ["--verbose"], "extraEnv": [{"name": "A", "value": "{{"}]},
}
PAIRS: Final = list(itertools.combinations(CHOICES, 2))


def merged(one: Json, other: Json) -> Json:
    result: Json = {**one}
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def names_in(node: Any) -> list[str]:
    """Return the names of all labels and annotations in an object."""
    if isinstance(node, list):
        return [name for item in node for name in names_in(item)]
    if not isinstance(node, dict):
        return []
    own = [name for field in ("labels", "annotations") for name in (node.get(field) or ())]
    return own + [name for value in node.values() for name in names_in(value)]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_pair_of_values_renders_valid_objects(pair: tuple[str, str]) -> None:
    rendered = everything(merged(CHOICES[pair[0]], CHOICES[pair[1]]))
    for (kind, name), manifest in rendered.items():
        assert manifest["apiVersion"], (kind, name)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name)
        assert None not in manifest.values(), f"{kind} {name} has an empty field"
        if kind != "CustomResourceDefinition":
            assert all(isinstance(n, str) and len(n.split("/")) <= 2 for n in names_in(manifest))
    references = [o["roleRef"] for o in rendered.values() if "roleRef" in o]
    assert all((role["kind"], role["name"]) in rendered for role in references)
    arguments = container_of(rendered)["args"]
    assert arguments[0] == "run"
    assert len({argument.partition("=")[0] for argument in arguments}) == len(arguments)
    mounted = {mount["name"] for mount in container_of(rendered).get("volumeMounts", ())}
    pod = rendered["Deployment", "ddp-operator"]["spec"]["template"]["spec"]
    assert mounted == {volume["name"] for volume in pod.get("volumes", ())}


@pytest.mark.parametrize("choice", CHOICES)
def test_helm_lint_accepts_the_values(choice: str) -> None:
    assert helm.lint(CHART, CHOICES[choice], strict=True)["errors"] == []
