"""Unit tests of the alerts, run by Prometheus' promtool."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.chart.queries import ALERTS, rules

TESTS: Final = Path(__file__).with_name("alerts.yaml")


def promtool(programs: Path, *words: str) -> str:
    ended = subprocess.run(
        [programs / "promtool", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_rules_and_their_templates_are_valid(programs: Path) -> None:
    found = promtool(programs, "check", "rules", str(ALERTS))
    assert f"SUCCESS: {len(rules())} rules found" in found


def test_alerts_fire_when_they_should(programs: Path) -> None:
    assert "SUCCESS" in promtool(programs, "test", "rules", str(TESTS))


def expected_alerts(case: dict[str, Any]) -> set[str]:
    text = " ".join(sample["labels"] for sample in case["exp_samples"])
    return set(re.findall(r'alertname="(\w+)"', text))


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules()])
def test_every_alert_has_a_case_before_it_fires(alert: str) -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    histories = [[alert in expected_alerts(case) for case in t["promql_expr_test"]] for t in tests]
    assert any(any(history) and not history[0] for history in histories)


def test_healthy_case_has_every_metric_and_no_alert() -> None:
    healthy = yaml.safe_load(TESTS.read_text())["tests"][0]
    queried = {
        metric
        for rule in rules()
        for metric in re.findall(r"(?:ddp_operator|ddpjob)_\w+", rule["expr"])
    }
    assert queried == {series["series"].partition("{")[0] for series in healthy["input_series"]}
    assert not any(expected_alerts(case) for case in healthy["promql_expr_test"])
