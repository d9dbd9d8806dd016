"""The alerts ask only for what the operator says of itself."""

import re
from typing import Any, Final

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.census import Census
from ddp_operator.engine.metrics import Metrics
from ddp_operator.job.failure.records import NO_PROGRESS

from tests.unit.chart.rendering import render

ENABLED: Final = {"metrics": {"alerts": {"enabled": True}}}


def rules(*, namespace: str = "ddp-operator") -> list[dict[str, Any]]:
    rule = render(ENABLED, namespace=namespace)["PrometheusRule", "ddp-operator"]
    [group] = rule["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_metric_is_one_of_the_operators() -> None:
    said = Metrics().text(Census(), queued=0, leading=True)
    known = set(re.findall(r"^# TYPE (\S+)", said, re.MULTILINE))
    asked = {name for rule in rules() for name in re.findall(r"ddp_operator_\w+", rule["expr"])}
    assert len(asked) >= 6
    assert asked <= known


def test_words_are_those_of_the_operator() -> None:
    reasons = {r for rule in rules() for r in re.findall(r'reason="(\w+)"', rule["expr"])}
    assert reasons == {NO_PROGRESS}
    assert "failures" in DDPJobStatus.model_fields


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_an_operator_in_another_namespace_has_alerts_of_its_own() -> None:
    for rule in rules(namespace="training"):
        selectors = re.findall(r"ddp_operator_\w+\{([^}]*)\}", rule["expr"])
        assert len(selectors) == rule["expr"].count("ddp_operator_")
        assert all(selector.startswith('namespace="training"') for selector in selectors)
