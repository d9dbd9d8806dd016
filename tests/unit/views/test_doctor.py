from typing import Any

import pytest
from ddp_client.views.doctor import Facts, Finding, Unknown, examine, shown
from ddp_operator.api.schema.crd import custom_resource_definition

from tests.unit.cli.jobs import ESCAPES

MEMORY = {"type": "Container", "default": {"memory": "1Gi"}}
FORBIDDEN = Unknown("you may not read it")


def node(
    name: str, labels: dict[str, str] | None = None, *, gpus: int = 0, ready: bool = True
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {
            "allocatable": {"cpu": "8", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def operator(ready: int = 2, image: str = "ddp-operator:1") -> dict[str, Any]:
    return {
        "metadata": {"name": "ddp-operator", "namespace": "ddp-operator"},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"readyReplicas": ready},
    }


def facts(**changes: Any) -> Facts:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    healthy: dict[str, Any] = {
        "namespace": "research",
        "release": "0.1.0",
        "version": {"gitVersion": "v1.37.1"},
        "served": True,
        "crd": custom_resource_definition(),
        "operators": [operator()],
        "missing": [],
        "nodes": [node("a", gpus=8), node("b")],
        "pods": [],
        "limits": [],
        "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
        "storage": [{"metadata": {"name": "standard", "annotations": default}}],
        "schedulers": {"Kueue": True},
        "queues": ["team"],
    }
    return Facts(**{**healthy, **changes})


def enforced(level: str, version: str = "latest") -> dict[str, str]:
    label = "pod-security.kubernetes.io/enforce"
    return {label: level, f"{label}-version": version}


def of(subject: str, **changes: Any) -> list[Finding]:
    return [each for each in examine(facts(**changes)) if each.subject == subject]


def test_healthy_cluster() -> None:
    found = examine(facts())
    assert {each.level for each in found} == {"ok"}
    assert [each.subject for each in found] == [
        *("cluster", "CRD", "operator", "your rights", "GPUs", "shared memory"),
        *("Pod Security", "schedulers", "queues", "storage"),
    ]
    lines = shown(found, 80)
    assert lines[-1] == "0 failures, 0 warnings"
    assert "ok         GPUs: 1 of 2 nodes offer 8 GPUs or slices, 8 free: nvidia.com/gpu" in lines


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("v1.37.2-gke.2097000", "--enable-kubernetes-unstable-apis=scheduling.k8s.io/v1beta1/podg"),
        ("v1.37.2", "turn on the feature gate GenericWorkload"),
        ("v1.36.5-gke.1982000", None),
        (ESCAPES, None),
    ],
)
def test_native_gangs_that_are_off_get_a_remedy(version: str, remedy: str | None) -> None:
    changes = {"version": {"gitVersion": version}, "schedulers": {"Kubernetes' own gangs": False}}
    findings = of("native gangs", **changes)
    assert len(findings) == (remedy is not None)
    for finding in findings:
        assert finding.level == "ok"
        assert str(remedy) in finding.remedy
        assert max(len(finding.text), len(finding.remedy)) <= 200
    changes["schedulers"] = {"Kubernetes' own gangs": True}
    assert of("native gangs", **changes) == []


@pytest.mark.parametrize(
    ("served", "level", "words"),
    [
        (True, "ok", "gives jobs one on nvidia-gb200, nvidia-gb300"),
        (False, "warn", "nvidia-gb300: the server has no ComputeDomains"),
        (FORBIDDEN, "not known", "you may not read it"),
    ],
)
def test_machines_with_nvlink_domains_need_the_driver(
    served: object, level: str, words: str
) -> None:
    label = "cloud.google.com/gke-accelerator"
    nodes = [node(f"nvidia-gb{n}00", {label: f"nvidia-gb{n}00"}, gpus=4) for n in (3, 2, 2)]
    [finding] = of("NVLink domains", nodes=nodes, domains=served)
    assert finding.level == level
    assert words in finding.text
    assert bool(finding.remedy) == (level == "warn")
    assert of("NVLink domains", nodes=[node("a", {label: "nvidia-b200"}, gpus=8)]) == []


def other_crd(*, newer: bool) -> dict[str, Any]:
    crd = custom_resource_definition()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = schema["properties"]["spec"]["properties"]
    if newer:
        fields["colour"] = {"type": "string"}
    else:
        del fields["isolation"]
    return crd


@pytest.mark.parametrize(
    ("subject", "changes", "level", "said"),
    [
        ("cluster", {"version": {"gitVersion": "v1.29.3"}}, "fail", "v1.29.3 is too old"),
        ("cluster", {"version": {"gitVersion": "v1.30.0-gke.1"}}, "ok", "too old for network car"),
        ("cluster", {"version": {"gitVersion": "v1.33.3-gke.1"}}, "ok", "too old for network car"),
        ("cluster", {"version": {"gitVersion": ESCAPES}}, "not known", "cannot read its version"),
        ("CRD", {"served": False}, "fail", "CRD is not installed"),
        ("CRD", {"crd": other_crd(newer=False)}, "warn", "lacks spec.isolation"),
        ("CRD", {"crd": other_crd(newer=True)}, "warn", "spec.colour"),
        ("CRD", {"crd": FORBIDDEN}, "ok", "release unknown: you may not read"),
        ("operator", {"operators": []}, "fail", "not installed"),
        ("operator", {"operators": [operator(ready=0)]}, "fail", "no ready pod"),
        ("operator", {"operators": FORBIDDEN}, "not known", "you may not read it"),
        ("your rights", {"missing": ["get pods"]}, "warn", "you may not get pods"),
        ("GPUs", {"nodes": FORBIDDEN}, "not known", "you may not read it"),
        ("GPUs", {"nodes": [node("a")]}, "warn", "none of 1 node offers one now"),
        (
            "GPUs",
            {"nodes": [node("a", {"cloud.google.com/gke-accelerator": "nvidia-l4"})]},
            "fail",
            "1 node with GPUs offer none: a",
        ),
        ("nodes", {"nodes": [node("a", gpus=1, ready=False)]}, "warn", "not ready: a"),
        ("shared memory", {"limits": [{"spec": {"limits": [MEMORY]}}]}, "warn", "get 1Gi here"),
        ("Pod Security", {"labels": {}}, "ok", "namespace research has no label for it"),
        ("Pod Security", {"labels": enforced("privileged")}, "ok", "any template is admitted"),
        ("Pod Security", {"labels": enforced("baseline")}, "ok", "(latest): templates must not"),
        ("Pod Security", {"labels": enforced("restricted")}, "ok", "runAsNonRoot: true"),
        ("Pod Security", {"labels": enforced(ESCAPES)}, "ok", "enforces restricted"),
        ("Pod Security", {"labels": enforced("baseline", ESCAPES)}, "ok", "enforces baseline"),
        ("Pod Security", {"labels": FORBIDDEN}, "not known", "may not read"),
        ("schedulers", {"schedulers": {}}, "ok", "none for queues or gangs"),
        ("schedulers", {"schedulers": {"Kueue": FORBIDDEN}}, "not known", "may not read"),
        ("queues", {"queues": []}, "warn", "no LocalQueue in namespace research"),
        ("queues", {"queues": FORBIDDEN}, "not known", "may not read"),
        ("storage", {"storage": [{"metadata": {"name": "slow"}}]}, "warn", "no default class"),
        ("storage", {"storage": []}, "warn", "there is no class"),
        ("storage", {"storage": FORBIDDEN}, "not known", "may not read"),
    ],
)
def test_each_finding_has_its_level(
    subject: str, changes: dict[str, Any], level: str, said: str
) -> None:
    [found, *_] = of(subject, **changes)
    assert (found.level, said in found.text) == (level, True), found
    assert bool(found.remedy) == (level in ("warn", "fail"))


def test_rights_in_one_namespace_give_no_failure() -> None:
    unknown = ("crd", "operators", "nodes", "storage", "limits", "labels")
    found = examine(facts(**dict.fromkeys(unknown, FORBIDDEN), schedulers={}))
    assert "fail" not in {each.level for each in found}
    assert shown(found, 80)[-1] == "0 failures, 0 warnings, 5 not known"


def test_hostile_text_of_the_cluster_is_printable_and_bounded() -> None:
    hostile = facts(
        nodes=[node(f"{ESCAPES}{number}", ready=False) for number in range(5000)],
        queues=[ESCAPES],
        labels=enforced("baseline", ESCAPES),
        operators=[operator(image=ESCAPES)],
        storage=[{"metadata": {"name": ESCAPES}}],
    )
    lines = shown(examine(hostile), 80)
    assert len(lines) < 40
    assert all(line.isprintable() for line in lines)
