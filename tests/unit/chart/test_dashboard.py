"""The dashboards show all metrics of the operator and no others."""

import itertools
import json
import re
from typing import Any, Final

import pytest
from ddp_operator.engine.metrics import Metrics, text_of
from ddp_operator.engine.metrics.totals import Totals
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.status.goodput import KINDS

from tests.chart.queries import DASHBOARDS, dashboard, panels
from tests.unit.chart.rendering import render
from tests.unit.engine.test_job_metrics import SAVED, TOLD, training
from tests.unit.job.builders import NOW

ENABLED: Final = {"metrics": {"dashboard": {"enabled": True}}}
GRID_COLUMNS: Final = 24

OF_OPERATOR: Final = Metrics().text(Totals(), queued=0, leading=True)
OF_JOB: Final = text_of([training(progress=TOLD, checkpoint=SAVED)], now=NOW)
ASKED: Final = {
    "ddp-operator": (OF_OPERATOR, "ddp_operator_", r'namespace="$namespace"'),
    "ddp-job": (OF_JOB, "ddpjob_", r'job_namespace="$namespace", job_name="$job"'),
}
"""By dashboard: known metrics, their prefix, and the selector of each query."""

each_dashboard: Final = pytest.mark.parametrize("uid", DASHBOARDS)


def test_dashboards_are_installed_unchanged() -> None:
    data = render(ENABLED, namespace="other")["ConfigMap", "ddp-operator-dashboard"]["data"]
    assert {name: json.loads(text) for name, text in data.items()} == {
        f"{uid}.json": dashboard(uid) for uid in DASHBOARDS
    }
    assert [dashboard(uid)["uid"] for uid in DASHBOARDS] == list(DASHBOARDS)


@each_dashboard
def test_dashboard_shows_every_metric(uid: str) -> None:
    said, prefix, _ = ASKED[uid]
    known = set(re.findall(r"^# TYPE (\S+)", said, re.MULTILINE))
    asked = {
        name.removesuffix("_bucket")
        for expression in panels(uid).values()
        for name in re.findall(rf"{prefix}\w+", expression)
    }
    assert asked == known


@each_dashboard
def test_queries_use_the_selected_variables(uid: str) -> None:
    _, prefix, chosen = ASKED[uid]
    for expression in panels(uid).values():
        selectors = re.findall(rf"{prefix}\w+\{{([^}}]*)\}}", expression)
        assert len(selectors) == expression.count(prefix)
        assert all(selector.startswith(chosen) for selector in selectors)


def test_queries_use_words_of_the_operator() -> None:
    text = " ".join(panels("ddp-operator").values())
    assert set(re.findall(r'reason="(\w+)"', text)) == {NO_PROGRESS}
    kinds = {kind for found in re.findall(r'kind=~?"([\w|]+)"', text) for kind in found.split("|")}
    assert kinds == {"starting", "training", "lost"}
    assert kinds < set(KINDS)


def test_queries_use_labels_of_a_job() -> None:
    known = set(re.findall(r'(\w+)="', OF_JOB))
    for panel in dashboard("ddp-job")["panels"]:
        for target in panel["targets"]:
            asked = re.findall(r'(\w+)="', target["expr"])
            by = re.findall(r"by \((\w+)\)", target["expr"])
            assert {*asked, *by} <= known
            assert re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")) == by
    assert set(re.findall(r'charged="(\w+)"', OF_JOB)) == set(
        re.findall(r'charged="(\w+)"', " ".join(panels("ddp-job").values()))
    )


@each_dashboard
def test_variables_are_defined_and_used(uid: str) -> None:
    found = dashboard(uid)
    variables = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(found)))
    assert used - {"__rate_interval", "__range"} == variables
    assert {panel["datasource"]["uid"] for panel in found["panels"]} == {"${datasource}"}
    said, prefix, _ = ASKED[uid]
    for variable in found["templating"]["list"]:
        for name in re.findall(rf"{prefix}\w+", json.dumps(variable)):
            assert f"# TYPE {name} " in said


@each_dashboard
def test_panel_has_the_unit_of_its_query(uid: str) -> None:
    for panel in dashboard(uid)["panels"]:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        texts = [target["expr"] for target in panel["targets"]]
        if panel["type"] == "gauge":
            assert unit == "percentunit"
        elif any("_seconds" in text for text in texts):
            assert unit == "s"
        else:
            assert unit in {"none", "reqps"} or "deriv(" in texts[0]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    assert columns.stop <= GRID_COLUMNS
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


@each_dashboard
def test_panels_do_not_overlap(uid: str) -> None:
    found = dashboard(uid)["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    assert len({panel["title"] for panel in found}) == len(found)
    for one, other in itertools.combinations(found, 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])
