"""Every value reaches what is installed."""

import argparse
import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import yaml
from ddp_operator.__main__ import _add_run_arguments

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


def image(rendered: Objects) -> Any:
    return container_of(rendered)["image"]


def arguments(rendered: Objects) -> Any:
    return container_of(rendered)["args"]


def of_pod(field: str) -> Callable[[Objects], Any]:
    return lambda rendered: pod_of(rendered).get(field)


def of_container(field: str) -> Callable[[Objects], Any]:
    return lambda rendered: container_of(rendered).get(field)


def endpoint(rendered: Objects) -> Any:
    [found] = rendered["PodMonitor", "ddp-operator"]["spec"]["podMetricsEndpoints"]
    return found


def labels_of(kind: str) -> Callable[[Objects], Any]:
    return lambda rendered: rendered[kind, "ddp-operator"]["metadata"].get("labels")


def has(kind: str, name: str = "ddp-operator") -> Callable[[Objects], Any]:
    return lambda rendered: (kind, name) in rendered


CASES: Final[list[tuple[str, Json, Callable[[Objects], Any], Any]]] = [
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
        of_pod("imagePullSecrets"),
        [{"name": "pull"}],
    ),
    ("replicas", {"replicas": 3}, lambda r: r[OPERATOR]["spec"]["replicas"], 3),
    (
        "resources",
        {"resources": {"limits": {"cpu": "2"}}},
        lambda r: container_of(r)["resources"]["limits"],
        {"cpu": "2", "memory": "512Mi"},
    ),
    (
        "watchNamespace",
        {"watchNamespace": "training"},
        arguments,
        [
            *("run", "--leader-elect", "--namespace=training"),
            "--launcher-image=ddp-operator:dev",  # it may not look at its own pod
        ],
    ),
    ("leaderElection", {"leaderElection": False, "replicas": 1}, arguments, ["run"]),
    (
        "progressPollSeconds",
        {"progressPollSeconds": 0.5},
        arguments,
        ["run", "--leader-elect", "--progress-poll-seconds=0.5"],
    ),
    (
        "logFormat",
        {"logFormat": "json"},
        arguments,
        ["run", "--leader-elect", "--log-format=json"],
    ),
    ("nodeSelector", {"nodeSelector": {"a": "b"}}, of_pod("nodeSelector"), {"a": "b"}),
    ("tolerations", {"tolerations": [TOLERATION]}, of_pod("tolerations"), [TOLERATION]),
    (
        "affinity",
        {"affinity": {"podAffinity": {"x": []}}},
        of_pod("affinity"),
        {"podAffinity": {"x": []}},
    ),
    (
        "topologySpreadConstraints",
        {"topologySpreadConstraints": [{"maxSkew": 2}]},
        of_pod("topologySpreadConstraints"),
        [{"maxSkew": 2}],
    ),
    (
        "priorityClassName",
        {"priorityClassName": "system-cluster-critical"},
        of_pod("priorityClassName"),
        "system-cluster-critical",
    ),
    ("podDisruptionBudget", {"podDisruptionBudget": False}, has("PodDisruptionBudget"), False),
    ("crds.enabled", {"crds": {"enabled": False}}, lambda r: CRD in r, False),
    (
        "crds.keep",
        {"crds": {"keep": False}},
        lambda r: "helm.sh/resource-policy" in r[CRD]["metadata"].get("annotations", {}),
        False,
    ),
    ("userRoles", {"userRoles": False}, has("ClusterRole", "ddpjobs-edit"), False),
    ("userRoles", {"userRoles": False}, has("ClusterRole", "ddpjobs-view"), False),
    ("admissionPolicy", {"admissionPolicy": True}, has("ValidatingAdmissionPolicy"), True),
    ("networkPolicy.enabled", {"networkPolicy": {"enabled": True}}, has("NetworkPolicy"), True),
    (
        "networkPolicy.metricsFrom",
        {"networkPolicy": {"enabled": True, "metricsFrom": {"metrics": None, "team": "sre"}}},
        lambda r: r["NetworkPolicy", "ddp-operator"]["spec"]["ingress"],
        [
            {
                "from": [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}],
                "ports": [{"port": "metrics"}],
            }
        ],
    ),
    (
        "metrics.jobs",
        {"metrics": {"jobs": 0}},
        arguments,
        ["run", "--leader-elect", "--metrics-jobs=0"],
    ),
    (
        "metrics.auth.enabled",
        {"metrics": {"auth": {"enabled": True}}},
        arguments,
        ["run", "--leader-elect", "--metrics-auth", "--metrics-cert-dir=/certificates"],
    ),
    (
        "metrics.auth.certificateSecret",
        {"metrics": {"auth": {"enabled": True, "certificateSecret": "mine"}}},
        of_pod("volumes"),
        [{"name": "certificates", "secret": {"secretName": "mine"}}],
    ),
    (
        "metrics.monitor.kind",
        {"metrics": {"monitor": MONITORED}},
        endpoint,
        {"port": "metrics", "scheme": "http", "interval": "30s"},
    ),
    (
        "metrics.monitor.kind",
        {"metrics": {"monitor": {"kind": "ServiceMonitor"}}},
        has("Service", "ddp-operator-metrics"),
        True,
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
    (
        "metrics.alerts.enabled",
        {"metrics": {"alerts": {"enabled": True}}},
        has("PrometheusRule"),
        True,
    ),
    (
        "metrics.alerts.labels",
        {"metrics": {"alerts": {"enabled": True, "labels": {"release": "prom"}}}},
        labels_of("PrometheusRule"),
        {"release": "prom"},
    ),
    (
        "metrics.dashboard.enabled",
        {"metrics": {"dashboard": {"enabled": True}}},
        lambda r: r["ConfigMap", "ddp-operator-dashboard"]["metadata"]["labels"],
        {"grafana_dashboard": "1"},
    ),
    (
        "metrics.dashboard.labels",
        {"metrics": {"dashboard": {"enabled": True, "labels": {"mine": "yes"}}}},
        lambda r: r["ConfigMap", "ddp-operator-dashboard"]["metadata"]["labels"],
        {"grafana_dashboard": "1", "mine": "yes"},
    ),
    ("dranet", {"dranet": True}, has("ClusterRoleBinding", "ddp-operator-claims"), True),
    ("gangs", {"gangs": True}, has("ClusterRoleBinding", "ddp-operator-gangs"), True),
    (
        "multikueue",
        {"multikueue": True},
        has("ClusterRoleBinding", "ddp-operator-multikueue"),
        True,
    ),
    (
        "priorityBoost",
        {"priorityBoost": 5},
        arguments,
        ["run", "--leader-elect", "--priority-boost=5"],
    ),
    (
        "sideCars.tcpx",
        {"sideCars": {"tcpx": "m/a:1"}},
        lambda r: r["ConfigMap", "ddp-operator-side-cars"]["data"],
        {"tcpx": "m/a:1"},
    ),
    (
        "sideCars.tcpxo",
        {"sideCars": {"tcpx": "m/a:1", "tcpxo": "m/b:2"}},
        lambda r: r["ConfigMap", "ddp-operator-side-cars"]["data"],
        {"tcpx": "m/a:1", "tcpxo": "m/b:2"},
    ),
    (
        "extraArgs",
        {"extraArgs": ["--verbose", "--a={{b}}"]},
        arguments,
        ["run", "--leader-elect", "--verbose", "--a={{b}}"],
    ),
    (
        "extraEnv",
        {"extraEnv": [{"name": "A", "value": "1"}]},
        of_container("env"),
        [{"name": "A", "value": "1"}],
    ),
    (
        "extraObjects",
        {
            "extraObjects": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "of-{{ .Release.Name }}", "namespace": "elsewhere"},
                }
            ]
        },
        lambda r: r["ConfigMap", "of-ddp"]["metadata"]["namespace"],
        "elsewhere",
    ),
]
OF_EVERY_OBJECT: Final = ("extraLabels", "extraAnnotations")
VALUES: Final = (CHART / "values.yaml").read_text()


def test_every_value_is_tried() -> None:
    tried = {name for name, *_ in CASES}
    names = {".".join(entry.path) for entry in entries(VALUES) if not entry.is_section}
    assert tried | set(OF_EVERY_OBJECT) == names


@pytest.mark.parametrize(("name", "values", "look", "expected"), CASES)
def test_a_value_reaches_what_is_installed(
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
    everywhere: dict[str, Any] = {"admissionPolicy": True, "dranet": True, "gangs": True}
    everywhere["multikueue"] = True
    everywhere["priorityBoost"] = 5
    everywhere["sideCars"] = {"tcpx": "m/a:1"}
    everywhere["metrics"] = {
        "monitor": {"kind": "ServiceMonitor", "labels": {"mine": "theirs"}},
        "alerts": {"enabled": True},
        "dashboard": {"enabled": True},
    }
    everywhere["networkPolicy"] = {"enabled": True}
    values = {**everywhere, name: {"mine": "yes"}}
    rendered = everything(values)
    assert len(rendered) > 20
    own = ("ServiceMonitor", "ddp-operator") if field == "labels" else None
    for key, manifest in rendered.items():
        expected = "theirs" if key == own else "yes"
        assert manifest["metadata"][field]["mine"] == expected, key
    template = rendered[OPERATOR]["spec"]["template"]["metadata"]
    assert template[field]["mine"] == "yes"
    selector = rendered[OPERATOR]["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "ddp-operator"}


def test_labels_that_others_find_the_pods_by_stay() -> None:
    rendered = render({"extraLabels": {"app.kubernetes.io/name": "mine"}})
    template = rendered[OPERATOR]["spec"]["template"]["metadata"]
    assert template["labels"] == {"app.kubernetes.io/name": "ddp-operator"}


def test_a_monitor_of_metrics_that_are_not_for_everybody_uses_tls() -> None:
    authorization = {"credentials": {"name": "token", "key": "token"}}
    monitor = {**MONITORED, "endpoint": {"authorization": authorization}}
    rendered = render({"metrics": {"auth": {"enabled": True}, "monitor": monitor}})
    assert endpoint(rendered) == {
        "port": "metrics",
        "scheme": "https",
        "interval": "30s",
        "authorization": authorization,
    }


def test_other_side_cars_start_the_operator_anew() -> None:
    def annotations(values: Json) -> Any:
        return render(values)[OPERATOR]["spec"]["template"]["metadata"].get("annotations")

    assert annotations({}) is None
    one, other = ({"sideCars": {"tcpx": f"m/a:{tag}"}} for tag in (1, 2))
    assert annotations(one) == annotations(copy.deepcopy(one))
    assert annotations(one).keys() == {"ddp-operator.io/side-cars"}
    assert annotations(one) != annotations(other)


def test_a_default_that_is_not_said_is_the_operators_own() -> None:
    parser = argparse.ArgumentParser()
    _add_run_arguments(parser)
    own = parser.parse_args([])
    defaults = yaml.safe_load(VALUES)
    assert defaults["progressPollSeconds"] == own.progress_poll_seconds
    assert defaults["logFormat"] == own.log_format


def test_releases_with_a_namespace_each_share_nothing() -> None:
    """But what one of them has for the cluster."""
    alone = {"crds": {"enabled": False}, "userRoles": False, "dranet": True, "gangs": True}
    alone["multikueue"] = True
    alone["priorityBoost"] = 5
    alone["metrics"] = {"auth": {"enabled": True}}
    one = render({**alone, "watchNamespace": "a"}, namespace="a")
    other = render({**alone, "watchNamespace": "b"}, namespace="b")

    def places(rendered: Objects) -> set[tuple[str, str, str]]:
        return {
            (kind, name, manifest["metadata"].get("namespace", ""))
            for (kind, name), manifest in rendered.items()
        }

    assert not places(one) & places(other)
    for namespace, rendered in (("a", one), ("b", other)):
        for manifest in rendered.values():
            assert manifest["metadata"].get("namespace", namespace) == namespace
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


def test_another_namespace_than_its_own_is_served_by_roles_there() -> None:
    granted = {"dranet": True, "gangs": True, "multikueue": True, "priorityBoost": 5}
    rendered = render({"watchNamespace": "training", **granted})
    there = {key for key, o in rendered.items() if o["metadata"].get("namespace") == "training"}
    assert there == {
        (kind, name)
        for kind in ("Role", "RoleBinding")
        for name in (
            "ddp-operator-jobs",
            "ddp-operator-logs",
            "ddp-operator-tokens",
            "ddp-operator-claims",
            "ddp-operator-gangs",
            "ddp-operator-multikueue",
            "ddp-operator-workloads",
        )
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


def test_the_tests_pods_go_where_the_operators_do() -> None:
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
