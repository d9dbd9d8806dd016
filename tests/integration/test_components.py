"""The installation with its components, as `kubectl kustomize` renders it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.integration.rights import MANIFESTS

Json = dict[str, Any]
Render = Callable[..., dict[tuple[str, str], Json]]

CLUSTER_WIDE: Final = ("CustomResourceDefinition", "ClusterRole", "ValidatingAdmissionPolicy")


@pytest.fixture
def render(kubectl_program: str, tmp_path: Path) -> Render:
    """Render the installation with some components, by kind and name."""
    manifests = Path(os.path.relpath(MANIFESTS, tmp_path))

    def render(*components: str, **fields: str) -> dict[tuple[str, str], Json]:
        chosen = {
            "resources": [str(manifests / "install")],
            "components": [str(manifests / "components" / name) for name in components],
            **fields,
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(chosen))
        words = [kubectl_program, "kustomize", str(tmp_path)]
        result = subprocess.run(words, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        documents = list(yaml.safe_load_all(result.stdout))
        rendered = {(d["kind"], d["metadata"]["name"]): d for d in documents}
        assert len(rendered) == len(documents)
        return rendered

    return render


def container(rendered: dict[tuple[str, str], Json]) -> Json:
    """Return the operator's container."""
    pod = rendered["Deployment", "ddp-operator"]["spec"]["template"]["spec"]
    [found] = pod["containers"]
    assert isinstance(found, dict)
    return found


def test_each_component_adds_only_its_objects(render: Render) -> None:
    bare = render()
    assert container(bare)["args"] == ["run", "--leader-elect"]
    added = {name: sorted(render(name).keys() - bare.keys()) for name in components()}
    assert added == {
        "admission-policy": [
            ("ValidatingAdmissionPolicy", "ddp-operator"),
            ("ValidatingAdmissionPolicyBinding", "ddp-operator"),
        ],
        "dranet": cluster_role("claims"),
        "gangs": cluster_role("gangs"),
        "multikueue": cluster_role("multikueue"),
        "metrics-auth": [
            ("ClusterRole", "ddp-operator-metrics-auth"),
            ("ClusterRole", "ddp-operator-metrics-reader"),
            ("ClusterRoleBinding", "ddp-operator-metrics-auth"),
        ],
        "network-policy": [("NetworkPolicy", "ddp-operator")],
        "priority-boost": cluster_role("workloads"),
        "one-namespace": [
            (kind, f"ddp-operator-{name}")
            for kind in ("Role", "RoleBinding")
            for name in ("jobs", "logs", "tokens")
        ],
    }


def cluster_role(name: str) -> list[tuple[str, str]]:
    """Return a ClusterRole of the operator and its binding."""
    return [(kind, f"ddp-operator-{name}") for kind in ("ClusterRole", "ClusterRoleBinding")]


def components() -> list[str]:
    return sorted(path.name for path in (MANIFESTS / "components").iterdir())


def test_component_one_namespace_grants_nothing_elsewhere(render: Render) -> None:
    rendered = render("one-namespace", namespace="training")
    kinds = {kind for kind, _ in rendered}
    assert "ClusterRoleBinding" not in kinds
    # The namespace belongs to the user and stays unchanged.
    assert "Namespace" not in kinds
    assert {name for kind, name in rendered if kind == "ClusterRole"} == {
        "ddpjobs-edit",
        "ddpjobs-view",
    }
    for (kind, _), manifest in rendered.items():
        if kind not in CLUSTER_WIDE:
            assert manifest["metadata"]["namespace"] == "training"
        for subject in manifest.get("subjects", ()):
            assert subject["namespace"] == "training"
    operator = container(rendered)
    assert operator["args"] == ["run", "--leader-elect", "--namespace=$(NAMESPACE)"]
    [variable] = operator["env"]
    assert variable["name"] == "NAMESPACE"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_all_components_go_together(render: Render) -> None:
    rendered = render(*components(), namespace="training")
    operator = container(rendered)
    assert operator["args"][2:] == [
        "--metrics-auth",
        "--metrics-cert-dir=/certificates",
        "--namespace=$(NAMESPACE)",
        "--priority-boost=10",
    ]
    ports = {port["name"]: port["containerPort"] for port in operator["ports"]}
    assert ports == {"health": 8080, "metrics": 8081}
    policy = rendered["NetworkPolicy", "ddp-operator"]["spec"]
    pods = rendered["Deployment", "ddp-operator"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == pods
    [rule] = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    binding = rendered["ClusterRoleBinding", "ddp-operator-metrics-auth"]
    assert [subject["namespace"] for subject in binding["subjects"]] == ["training"]
