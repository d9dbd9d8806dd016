"""Every alert fires when it should, not before, and not when all is well: Prometheus' own tests."""

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


def test_the_rules_and_the_templates_in_them_can_be_read(programs: Path) -> None:
    found = promtool(programs, "check", "rules", str(ALERTS))
    assert f"SUCCESS: {len(rules())} rules found" in found


def test_alerts_fire_when_they_should(programs: Path) -> None:
    assert "SUCCESS" in promtool(programs, "test", "rules", str(TESTS))


def fired(question: dict[str, Any]) -> set[str]:
    text = " ".join(sample["labels"] for sample in question["exp_samples"])
    return set(re.findall(r'alertname="(\w+)"', text))


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules()])
def test_it_is_asked_of_every_alert_whether_it_fires_too_early(alert: str) -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    histories = [[alert in fired(question) for question in t["promql_expr_test"]] for t in tests]
    assert any(any(history) and not history[0] for history in histories)


def test_it_is_asked_where_all_is_well() -> None:
    well = yaml.safe_load(TESTS.read_text())["tests"][0]
    asked = {
        metric
        for rule in rules()
        for metric in re.findall(r"(?:ddp_operator|ddpjob)_\w+", rule["expr"])
    }
    assert asked == {series["series"].partition("{")[0] for series in well["input_series"]}
    assert not any(fired(question) for question in well["promql_expr_test"])
