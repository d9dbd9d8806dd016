"""Every value reaches what is installed."""

import argparse
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import yaml
from ddp_operator.__main__ import _add_run_arguments
from ddp_operator.api.constants import OPERATOR_LABELS

from tests.unit.chart.rendering import (
    OPERATOR,
    Json,
    Objects,
    container_of,
    everything,
    hooks,
    pod_of,
    render,
)
from tools.chart.generated import CHART, entries

DIGEST: Final = f"sha256:{'0123456789abcdef' * 4}"
CRD: Final = ("CustomResourceDefinition", "ddpjobs.ddp-operator.io")
TOLERATION: Final = {"key": "dedicated", "operator": "Exists"}
MONITORED: Final[Json] = {"kind": "PodMonitor"}
EXTRA: Final[Json] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "of-{{ .Release.Name }}", "namespace": "elsewhere"},
}
EVERYTHING: Final[Json] = {
    **{"dranet": True, "computeDomains": True, "gangs": True, "multikueue": True},
    "admissionPolicy": {"enabled": True},
    **{"priorityBoost": 5, "sideCars": {"tcpx": "m/a:1"}},
    "metrics": {
        "monitor": {"kind": "ServiceMonitor", "labels": {"mine": "theirs"}},
        "alerts": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}


Look = Callable[[Objects], Any]
Case = tuple[str, Json, Look, Any]
"""The value's name, values with it, where it goes, and the content there."""


def image(rendered: Objects) -> Any:
    return container_of(rendered)["image"]


def endpoint(rendered: Objects) -> Any:
    [found] = rendered["PodMonitor", "ddp-operator"]["spec"]["podMetricsEndpoints"]
    return found


def side_cars(rendered: Objects) -> Any:
    return rendered["ConfigMap", "ddp-operator-side-cars"]["data"]


def labels_of(kind: str, name: str = "ddp-operator") -> Look:
    return lambda rendered: rendered[kind, name]["metadata"].get("labels")


def argument(name: str, values: Json, *arguments: str) -> Case:
    """Return the case of a value that becomes arguments of the operator."""
    expected = ["run", "--leader-elect", "--isolation=Job", *arguments]
    return name, values, lambda rendered: container_of(rendered)["args"], expected


def pod_field(name: str, value: Any) -> Case:
    """Return the case of a value that becomes the field of that name in the operator's pods."""
    return name, {name: value}, lambda rendered: pod_of(rendered).get(name), value


def switch(name: str, values: Json, kind: str, object_name: str = "ddp-operator") -> Case:
    """Return the case of a value that adds an object, or removes it if it is false."""
    is_expected = "False" not in str(values)
    return name, values, lambda rendered: (kind, object_name) in rendered, is_expected


def bound(name: str, value: Any, expression: str) -> Case:
    """Return the case of a value that becomes a variable of the admission policy."""

    def look(rendered: Objects) -> Any:
        policy = rendered["ValidatingAdmissionPolicy", "ddp-operator"]
        return {v["name"]: v["expression"] for v in policy["spec"]["variables"]}[name]

    values = {"admissionPolicy": {"enabled": True, name: value}}
    return f"admissionPolicy.{name}", values, look, expression


CASES: Final[list[Case]] = [
    ("image.registry", {"image": {"registry": "ghcr.io/x/"}}, image, "ghcr.io/x/ddp-operator:dev"),
    ("image.repository", {"image": {"repository": "a/b"}}, image, "a/b:dev"),
    ("image.tag", {"image": {"tag": "1.2.3"}}, image, "ddp-operator:1.2.3"),
    ("image.digest", {"image": {"digest": DIGEST}}, image, f"ddp-operator@{DIGEST}"),
    (
        "image.digest",
        {"image": {"registry": "r:5000", "tag": "1", "digest": DIGEST}},
        image,
        f"r:5000/ddp-operator:1@{DIGEST}",
    ),
    (
        "image.pullSecrets",
        {"image": {"pullSecrets": [{"name": "pull"}]}},
        lambda r: pod_of(r).get("imagePullSecrets"),
        [{"name": "pull"}],
    ),
    ("replicas", {"replicas": 3}, lambda r: r[OPERATOR]["spec"]["replicas"], 3),
    (
        "resources",
        {"resources": {"limits": {"cpu": "2"}}},
        lambda r: container_of(r)["resources"]["limits"],
        {"cpu": "2", "memory": "512Mi"},
    ),
    argument(
        "watchNamespace",
        {"watchNamespace": "training"},
        "--namespace=training",
    ),
    (
        "leaderElection",
        {"leaderElection": False, "replicas": 1},
        lambda r: container_of(r)["args"],
        ["run", "--isolation=Job"],
    ),
    argument("progressPollSeconds", {"progressPollSeconds": 0.5}, "--progress-poll-seconds=0.5"),
    argument("logFormat", {"logFormat": "json"}, "--log-format=json"),
    pod_field("nodeSelector", {"a": "b"}),
    pod_field("tolerations", [TOLERATION]),
    pod_field("affinity", {"podAffinity": {"x": []}}),
    pod_field("topologySpreadConstraints", [{"maxSkew": 2}]),
    pod_field("priorityClassName", "system-cluster-critical"),
    switch("podDisruptionBudget", {"podDisruptionBudget": False}, "PodDisruptionBudget"),
    switch("crds.enabled", {"crds": {"enabled": False}}, *CRD),
    (
        "crds.keep",
        {"crds": {"keep": False}},
        lambda r: "helm.sh/resource-policy" in r[CRD]["metadata"].get("annotations", {}),
        False,
    ),
    switch("userRoles", {"userRoles": False}, "ClusterRole", "ddpjobs-edit"),
    switch("userRoles", {"userRoles": False}, "ClusterRole", "ddpjobs-view"),
    switch(
        "admissionPolicy.enabled",
        {"admissionPolicy": {"enabled": True}},
        "ValidatingAdmissionPolicy",
    ),
    bound("deniedNamespaces", ["kube-system", "a"], '["kube-system","a"]'),
    bound("hostPaths", ["/var/lib/training"], '["/var/lib/training"]'),
    bound("hostNetwork", True, "true"),
    bound("capabilities", ["NET_ADMIN"], '["NET_ADMIN"]'),
    (
        "isolation",
        {"isolation": "None"},
        lambda r: container_of(r)["args"],
        ["run", "--leader-elect", "--isolation=None"],
    ),
    switch("networkPolicy.enabled", {"networkPolicy": {"enabled": False}}, "NetworkPolicy"),
    (
        "networkPolicy.metricsFrom",
        {"networkPolicy": {"metricsFrom": {"metrics": None, "team": "sre"}}},
        lambda r: r["NetworkPolicy", "ddp-operator"]["spec"]["ingress"],
        [
            {
                "from": [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}],
                "ports": [{"port": "metrics", "protocol": "TCP"}],
            }
        ],
    ),
    argument("metrics.jobs", {"metrics": {"jobs": 0}}, "--metrics-jobs=0"),
    argument(
        "metrics.auth.enabled",
        {"metrics": {"auth": {"enabled": True}}},
        "--metrics-auth",
        "--metrics-cert-dir=/certificates",
    ),
    (
        "metrics.auth.certificateSecret",
        {"metrics": {"auth": {"enabled": True, "certificateSecret": "mine"}}},
        lambda r: pod_of(r).get("volumes"),
        [{"name": "certificates", "secret": {"secretName": "mine"}}],
    ),
    (
        "metrics.monitor.kind",
        {"metrics": {"monitor": MONITORED}},
        endpoint,
        {"port": "metrics", "scheme": "http", "interval": "30s"},
    ),
    switch(
        "metrics.monitor.kind",
        {"metrics": {"monitor": {"kind": "ServiceMonitor"}}},
        *("Service", "ddp-operator-metrics"),
    ),
    (
        "metrics.monitor.interval",
        {"metrics": {"monitor": {**MONITORED, "interval": "1m"}}},
        lambda r: endpoint(r)["interval"],
        "1m",
    ),
    (
        "metrics.monitor.labels",
        {"metrics": {"monitor": {**MONITORED, "labels": {"release": "prom"}}}},
        labels_of("PodMonitor"),
        {"release": "prom"},
    ),
    (
        "metrics.monitor.endpoint",
        {"metrics": {"monitor": {**MONITORED, "endpoint": {"honorTimestamps": False}}}},
        lambda r: endpoint(r)["honorTimestamps"],
        False,
    ),
    switch("metrics.alerts.enabled", {"metrics": {"alerts": {"enabled": True}}}, "PrometheusRule"),
    (
        "metrics.alerts.labels",
        {"metrics": {"alerts": {"enabled": True, "labels": {"release": "prom"}}}},
        labels_of("PrometheusRule"),
        {"release": "prom"},
    ),
    (
        "metrics.dashboard.enabled",
        {"metrics": {"dashboard": {"enabled": True}}},
        labels_of("ConfigMap", "ddp-operator-dashboard"),
        {"grafana_dashboard": "1"},
    ),
    (
        "metrics.dashboard.labels",
        {"metrics": {"dashboard": {"enabled": True, "labels": {"mine": "yes"}}}},
        labels_of("ConfigMap", "ddp-operator-dashboard"),
        {"grafana_dashboard": "1", "mine": "yes"},
    ),
    *(
        switch(name, {name: True}, "ClusterRoleBinding", f"ddp-operator-{role}")
        for name, role in (
            ("dranet", "claims"),
            ("computeDomains", "compute-domains"),
            ("gangs", "gangs"),
            ("multikueue", "multikueue"),
        )
    ),
    argument("priorityBoost", {"priorityBoost": 5}, "--priority-boost=5"),
    ("sideCars.tcpx", {"sideCars": {"tcpx": "m/a:1"}}, side_cars, {"tcpx": "m/a:1"}),
    ("sideCars.tcpxo", {"sideCars": {"tcpxo": "m/b:2"}}, side_cars, {"tcpxo": "m/b:2"}),
    argument("extraArgs", {"extraArgs": ["--verbose", "--a={{b}}"]}, "--verbose", "--a={{b}}"),
    (
        "extraEnv",
        {"extraEnv": [{"name": "A", "value": "1"}]},
        lambda r: container_of(r).get("env"),
        [{"name": "A", "value": "1"}],
    ),
    (
        "extraObjects",
        {"extraObjects": [EXTRA]},
        lambda r: r["ConfigMap", "of-ddp"]["metadata"]["namespace"],
        "elsewhere",
    ),
]
ROLES: Final = (
    *("jobs", "logs", "tokens", "claims", "compute-domains"),
    *("gangs", "multikueue", "workloads"),
)
OF_EVERY_OBJECT: Final = ("extraLabels", "extraAnnotations")
VALUES: Final = (CHART / "values.yaml").read_text()


def test_every_value_has_a_case() -> None:
    tried = {name for name, *_ in CASES}
    names = {".".join(entry.path) for entry in entries(VALUES) if not entry.is_section}
    assert tried | {*OF_EVERY_OBJECT, "testNamespace"} == names


@pytest.mark.parametrize(("name", "values", "look", "expected"), CASES)
def test_value_changes_the_installed_objects(
    name: str, values: Mapping[str, Any], look: Callable[[Objects], Any], expected: Any
) -> None:
    assert look(render(values)) == expected
    without = copy.deepcopy(dict(values))
    *path, last = name.split(".")
    node = without
    for step in path:
        node = node[step]
    del node[last]
    assert render(without) != render(values)


@pytest.mark.parametrize("name", OF_EVERY_OBJECT)
def test_labels_and_annotations_reach_every_object(name: str) -> None:
    field = name.removeprefix("extra").lower()
    rendered = everything({**EVERYTHING, name: {"mine": "yes"}})
    assert len(rendered) > 20
    own = ("ServiceMonitor", "ddp-operator") if field == "labels" else None
    for key, manifest in rendered.items():
        expected = "theirs" if key == own else "yes"
        assert manifest["metadata"][field]["mine"] == expected, key
    template = rendered[OPERATOR]["spec"]["template"]["metadata"]
    assert template[field]["mine"] == "yes"
    selector = rendered[OPERATOR]["spec"]["selector"]["matchLabels"]
    assert selector == OPERATOR_LABELS


def test_extra_labels_do_not_replace_the_selector() -> None:
    rendered = render({"extraLabels": dict.fromkeys(OPERATOR_LABELS, "mine")})
    template = rendered[OPERATOR]["spec"]["template"]["metadata"]
    assert OPERATOR_LABELS.items() <= template["labels"].items()


def test_monitor_of_authenticated_metrics_uses_tls() -> None:
    authorization = {"credentials": {"name": "token", "key": "token"}}
    monitor = {**MONITORED, "endpoint": {"authorization": authorization}}
    rendered = render({"metrics": {"auth": {"enabled": True}, "monitor": monitor}})
    assert endpoint(rendered) == {
        "port": "metrics",
        "scheme": "https",
        "interval": "30s",
        "authorization": authorization,
    }


def test_changed_side_cars_restart_the_operator() -> None:
    def annotations(values: Json) -> Any:
        return render(values)[OPERATOR]["spec"]["template"]["metadata"].get("annotations")

    assert annotations({}) is None
    one, other = ({"sideCars": {"tcpx": f"m/a:{tag}"}} for tag in (1, 2))
    assert annotations(one) == annotations(copy.deepcopy(one))
    assert annotations(one).keys() == {"ddp-operator.io/side-cars"}
    assert annotations(one) != annotations(other)


def test_defaults_are_those_of_the_operator() -> None:
    parser = argparse.ArgumentParser()
    _add_run_arguments(parser)
    own = parser.parse_args([])
    defaults = yaml.safe_load(VALUES)
    assert defaults["progressPollSeconds"] == own.progress_poll_seconds
    assert defaults["logFormat"] == own.log_format


def test_releases_in_two_namespaces_share_nothing() -> None:
    """Except objects of the whole cluster."""
    alone: Json = {"crds": {"enabled": False}, "userRoles": False, "dranet": True, "gangs": True}
    alone |= {
        "computeDomains": True,
        "multikueue": True,
        "priorityBoost": 5,
        "metrics": {"auth": {"enabled": True}},
    }
    one = render({**alone, "watchNamespace": "a"}, namespace="operator-a")
    other = render({**alone, "watchNamespace": "b"}, namespace="operator-b")

    def places(rendered: Objects) -> set[tuple[str, str, str]]:
        return {
            (kind, name, manifest["metadata"].get("namespace", ""))
            for (kind, name), manifest in rendered.items()
        }

    assert not places(one) & places(other)
    for served, rendered in (("a", one), ("b", other)):
        namespace = f"operator-{served}"
        for manifest in rendered.values():
            assert manifest["metadata"].get("namespace", namespace) in (served, namespace)
            for subject in manifest.get("subjects", ()):
                assert subject["namespace"] == namespace
        bound = {
            manifest["roleRef"]["name"]
            for (kind, _), manifest in rendered.items()
            if kind == "ClusterRoleBinding"
        }
        assert bound == {f"ddp-operator-metrics-auth-{namespace}"}
        assert ("ClusterRole", *bound) in rendered
        assert ("ClusterRole", f"ddp-operator-metrics-reader-{namespace}") in rendered


def test_other_namespace_has_its_own_roles() -> None:
    granted: Json = {"dranet": True, "computeDomains": True, "gangs": True, "multikueue": True}
    granted["priorityBoost"] = 5
    rendered = render({"watchNamespace": "training", **granted})
    there = {key for key, o in rendered.items() if o["metadata"].get("namespace") == "training"}
    assert there == {
        (kind, name)
        for kind in ("Role", "RoleBinding")
        for name in map("ddp-operator-{}".format, ROLES)
    }
    assert {name for kind, name in rendered if kind == "ClusterRole"} == {
        "ddpjobs-edit",
        "ddpjobs-view",
    }
    for key in there:
        if key[0] == "RoleBinding":
            assert rendered[key]["roleRef"]["kind"] == "Role"
            [subject] = rendered[key]["subjects"]
            assert subject["namespace"] == "ddp-operator"


@pytest.mark.parametrize(
    ("values", "namespace"),
    [
        ({}, "default"),
        ({"testNamespace": "trial"}, "trial"),
        ({"testNamespace": "trial", "watchNamespace": "training"}, "training"),
    ],
)
def test_job_of_helm_test_is_beside_the_operators_namespace(values: Json, namespace: str) -> None:
    tried = hooks(values)
    [container] = tried["Pod", "ddp-operator-test"]["spec"]["containers"]
    [variable] = container["env"]
    assert json.loads(variable["value"])["metadata"]["namespace"] == namespace
    for kind in ("Role", "RoleBinding"):
        assert tried[kind, "ddp-operator-test"]["metadata"]["namespace"] == namespace


def test_pods_of_helm_test_are_placed_like_the_operators() -> None:
    values = {
        "nodeSelector": {"a": "b"},
        "tolerations": [TOLERATION],
        "image": {"registry": "r", "pullSecrets": [{"name": "pull"}]},
    }
    pod = hooks(values)["Pod", "ddp-operator-test"]["spec"]
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["tolerations"] == [TOLERATION]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert [container["image"] for container in pod["containers"]] == ["r/ddp-operator:dev"]
