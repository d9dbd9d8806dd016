"""The alerts use only metrics and words of the operator."""

import re
from typing import Any, Final, get_args

from ddp_operator.api.status import DDPJobStatus, Phase
from ddp_operator.engine.metrics import Metrics, text_of
from ddp_operator.engine.metrics.totals import Totals
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.status.goodput import KINDS

from tests.unit.chart.rendering import render
from tests.unit.job.builders import NOW

METRIC: Final = re.compile(r"(?:ddp_operator|ddpjob)_\w+")
ENABLED: Final = {"metrics": {"alerts": {"enabled": True}}}


def rules(*, namespace: str = "ddp-operator") -> list[dict[str, Any]]:
    rule = render(ENABLED, namespace=namespace)["PrometheusRule", "ddp-operator"]
    [group] = rule["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def words(label: str) -> set[str]:
    """Return the values of a label that the rules select."""
    found = (re.findall(rf'{label}=~?"([\w|]+)"', rule["expr"]) for rule in rules())
    return {word for texts in found for text in texts for word in text.split("|")}


def test_alerts_use_metrics_of_the_operator() -> None:
    text = Metrics().text(Totals(), queued=0, leading=True) + text_of((), now=NOW)
    known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    asked = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    assert len(asked) >= 6
    assert asked <= known


def test_alerts_use_words_of_the_operator() -> None:
    reasons = {r for rule in rules() for r in re.findall(r'reason="(\w+)"', rule["expr"])}
    assert reasons == {NO_PROGRESS}
    assert "failures" in DDPJobStatus.model_fields
    assert words("phase") == {"Running", "Restarting"} <= set(get_args(Phase))
    assert words("kind") == {"lost", "training"} <= set(KINDS)


def test_alert_has_summary_description_and_severity() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_alerts_select_the_namespace_of_the_operator() -> None:
    for rule in rules(namespace="training"):
        selectors = re.findall(METRIC.pattern + r"\{([^}]*)\}", rule["expr"])
        assert len(selectors) == len(METRIC.findall(rule["expr"]))
        assert all(selector.startswith('namespace="training"') for selector in selectors)
