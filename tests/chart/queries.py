"""Queries of the chart: rules of its alerts and panels of its dashboards."""

import json
from typing import Any, Final

import yaml

from tools.chart.generated import CHART

ALERTS: Final = CHART / "files/alerts.yaml"
DASHBOARDS: Final = {"ddp-operator": "dashboard.json", "ddp-job": "job-dashboard.json"}
"""Files of the dashboards, by their UID in Grafana."""


def rules() -> list[dict[str, Any]]:
    """Return the alerting rules, for an operator in the namespace ddp-operator."""
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard(uid: str) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    found: dict[str, Any] = json.loads((CHART / "files" / DASHBOARDS[uid]).read_text())
    return found


def panels(uid: str) -> dict[str, str]:
    """Return the queries of a dashboard's panels, by title and reference."""
    return {
        f"{panel['title']}: {target['refId']}": target["expr"]
        for panel in dashboard(uid)["panels"]
        for target in panel["targets"]
    }
