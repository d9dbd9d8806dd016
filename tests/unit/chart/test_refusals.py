"""Invalid values are refused by name."""

from typing import Any

import helm_python as helm
import pytest
from ddp_operator.job.pods.fabrics import SideCars as Operators

from tests.unit.chart.rendering import chart, render
from tools.chart.values import SideCars

BAD: list[tuple[dict[str, Any], str]] = [
    ({"replica": 3}, "'replica'"),
    ({"image": {"Tag": "1"}}, "'Tag'"),
    ({"crds": {"enable": True}}, "'enable'"),
    ({"metrics": {"monitor": {"intervall": "1m"}}}, "'intervall'"),
    ({"metrics": {"alert": {}}}, "'alert'"),
    ({"metrics": {"dashboard": {"labels": {"grafana_dashboard": 1}}}}, "/grafana_dashboard"),
    ({"watchNamespaces": ["a", "b"]}, "'watchNamespaces'"),
    ({"watchNamespace": ["a", "b"]}, "/watchNamespace"),
    ({"watchNamespace": "A b"}, "/watchNamespace"),
    ({"replicas": 0}, "/replicas"),
    ({"replicas": "3"}, "/replicas"),
    ({"image": {"digest": "sha256:1"}}, "/image/digest"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"logFormat": "xml"}, "/logFormat"),
    ({"progressPollSeconds": 0}, "/progressPollSeconds"),
    ({"metrics": {"monitor": {"kind": "Probe"}}}, "/metrics/monitor/kind"),
    ({"metrics": {"monitor": {"interval": "1 minute"}}}, "/metrics/monitor/interval"),
    ({"nodeSelector": {"a": True}}, "/nodeSelector/a"),
    ({"admissionPolicy": {"hostPaths": ["data"]}}, "/admissionPolicy/hostPaths/0"),
    ({"isolation": "none"}, "/isolation"),
    ({"extraArgs": "--verbose"}, "/extraArgs"),
    ({"sideCars": {"tcpx": "image-without-tag"}}, "/sideCars/tcpx"),
    ({"sideCars": {"rdma": "m/a:1"}}, "'rdma'"),
]


@pytest.mark.parametrize(("values", "named"), BAD, ids=str)
def test_invalid_value_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refusal:
        chart().validate_schema(values)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"leaderElection": False}, "leaderElection: false allows only replicas: 1"),
        (
            {"metrics": {"auth": {"enabled": True}, "monitor": {"kind": "PodMonitor"}}},
            "metrics.monitor.endpoint: metrics.auth requires authorization",
        ),
        ({"watchNamespace": "ddp-operator"}, "watchNamespace: must differ from the release's"),
        ({"enabled": False}, "enabled: only a parent chart may set it"),
        ({"extraObjects": [{"kind": "ConfigMap"}]}, "extraObjects: an object has no metadata"),
    ],
)
def test_contradicting_values_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmRenderError) as refusal:
        render(values)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "values", [{}, {"global": {"imageRegistry": "x"}}, {"enabled": True}, {"resources": None}]
)
def test_values_of_a_parent_chart_are_accepted(values: dict[str, Any]) -> None:
    chart().validate_schema(values)
    assert render(values)


def test_side_cars_are_those_of_the_operator() -> None:
    assert SideCars.model_fields.keys() == Operators.model_fields.keys()
