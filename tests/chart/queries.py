"""What the chart has Prometheus asked: rules of its alerts, panels of its dashboard."""

import json
from typing import Any, Final

import yaml

from tests.chart.generated import CHART

ALERTS: Final = CHART / "files/alerts.yaml"
DASHBOARD: Final = CHART / "files/dashboard.json"


def rules() -> list[dict[str, Any]]:
    """Return the alerting rules, for an operator in the namespace ddp-operator."""
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> dict[str, str]:
    """Return what the dashboard's panels ask, by title and reference."""
    return {
        f"{panel['title']}: {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    }
