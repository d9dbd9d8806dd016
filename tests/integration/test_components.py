"""The installation with its components, as `kubectl kustomize` renders it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.integration.rights import MANIFESTS
from tests.unit.kube.admission import AdmissionRequest, Policy

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
    assert container(bare)["args"] == ["run", "--leader-elect", "--isolation=Job"]
    added = {name: sorted(render(name).keys() - bare.keys()) for name in components()}
    assert added == {
        "admission-policy": [
            ("ValidatingAdmissionPolicy", "ddp-operator"),
            ("ValidatingAdmissionPolicyBinding", "ddp-operator"),
        ],
        "dranet": cluster_role("claims"),
        "compute-domains": cluster_role("compute-domains"),
        "gangs": cluster_role("gangs"),
        "multikueue": cluster_role("multikueue"),
        "metrics-auth": [
            ("ClusterRole", "ddp-operator-metrics-auth"),
            ("ClusterRole", "ddp-operator-metrics-reader"),
            ("ClusterRoleBinding", "ddp-operator-metrics-auth"),
        ],
        "priority-boost": cluster_role("workloads"),
        "one-namespace": [
            (kind, f"ddp-operator-{name}")
            for kind in ("Role", "RoleBinding")
            for name in ("image", "jobs", "logs", "tokens")
        ],
    }


def cluster_role(name: str) -> list[tuple[str, str]]:
    """Return a ClusterRole of the operator and its binding."""
    return [(kind, f"ddp-operator-{name}") for kind in ("ClusterRole", "ClusterRoleBinding")]


def components() -> list[str]:
    return sorted(path.name for path in (MANIFESTS / "components").iterdir())


def test_component_one_namespace_grants_nothing_elsewhere(render: Render) -> None:
    rendered = render("one-namespace")
    assert "ClusterRoleBinding" not in {kind for kind, _ in rendered}
    assert {name for kind, name in rendered if kind == "ClusterRole"} == {
        "ddpjobs-edit",
        "ddpjobs-view",
    }
    places = {
        (kind, name): manifest["metadata"]["namespace"]
        for (kind, name), manifest in rendered.items()
        if kind not in (*CLUSTER_WIDE, "Namespace")
    }
    served = {(kind, name) for (kind, name), place in places.items() if place == "training"}
    assert served == {
        (kind, f"ddp-operator-{name}")
        for kind in ("Role", "RoleBinding")
        for name in ("jobs", "logs", "tokens")
    }
    assert set(places.values()) == {"training", "ddp-operator"}
    for manifest in rendered.values():
        for subject in manifest.get("subjects", ()):
            assert subject["namespace"] == "ddp-operator"
    operator = container(rendered)
    assert operator["args"] == [
        "run",
        "--leader-elect",
        "--isolation=Job",
        "--namespace=$(NAMESPACE)",
    ]
    assert operator["env"] == [{"name": "NAMESPACE", "value": "training"}]


@pytest.mark.parametrize(
    "changes", [{}, {"namePrefix": "ml-", "nameSuffix": "2"}, {"namespace": "ops"}]
)
def test_admission_policy_limits_the_renamed_account(render: Render, changes: Json) -> None:
    rendered = render("admission-policy", **changes)
    [deployment] = [o for (kind, _), o in rendered.items() if kind == "Deployment"]
    [policy] = [o for (kind, _), o in rendered.items() if kind == "ValidatingAdmissionPolicy"]
    [binding] = [o for (kind, _), o in rendered.items() if kind.endswith("PolicyBinding")]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    username = f"system:serviceaccount:{deployment['metadata']['namespace']}:{account}"
    pod: Json = {"metadata": {"namespace": "training"}}
    request = AdmissionRequest("CREATE", "", "pods", username, pod, None)
    assert Policy(policy).applies_to(request)


def test_all_components_go_together(render: Render) -> None:
    rendered = render(*components())
    operator = container(rendered)
    assert operator["args"][3:] == [
        "--metrics-auth",
        "--metrics-cert-dir=/certificates",
        "--namespace=$(NAMESPACE)",
        "--priority-boost=10",
    ]
    ports = {port["name"]: port["containerPort"] for port in operator["ports"]}
    assert ports == {"health": 8080, "metrics": 8081}
    policy = rendered["NetworkPolicy", "ddp-operator"]["spec"]
    pods = rendered["Deployment", "ddp-operator"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= pods.items()
    [rule] = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    binding = rendered["ClusterRoleBinding", "ddp-operator-metrics-auth"]
    assert [subject["namespace"] for subject in binding["subjects"]] == ["ddp-operator"]
