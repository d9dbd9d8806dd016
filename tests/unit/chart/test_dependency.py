"""The chart as a dependency of another chart."""

from pathlib import Path
from typing import Any, Final

import helm_python as helm
import pytest
import yaml

from tools.chart.generated import CHART

DEPLOYMENT: Final = "platform/charts/ddp-operator/templates/deployment.yaml"


@pytest.fixture
def parent(tmp_path: Path) -> helm.Chart:
    """A chart with the operator as its one dependency, which can be left out."""
    folder = tmp_path / "platform"
    (folder / "charts").mkdir(parents=True)
    (folder / "charts/ddp-operator").symlink_to(CHART)
    dependency = {"name": "ddp-operator", "version": "0.1.0", "condition": "ddp-operator.enabled"}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**about, "dependencies": [dependency]}))
    return helm.Chart.load(folder)


def rendered(parent: helm.Chart, values: dict[str, Any]) -> dict[str, str]:
    return parent.render(values, name="platform", namespace="ml")


@pytest.mark.parametrize("enabled", [True, False])
def test_dependency_is_rendered_if_enabled(parent: helm.Chart, enabled: bool) -> None:
    values = {"ddp-operator": {"enabled": enabled, "replicas": 3}, "global": {"region": "eu"}}
    found = rendered(parent, values)
    assert (DEPLOYMENT in found) is enabled
    if enabled:
        deployment = yaml.safe_load(found[DEPLOYMENT])
        assert deployment["spec"]["replicas"] == 3
        assert deployment["metadata"]["namespace"] == "ml"


def test_unknown_value_of_a_dependency_is_named(parent: helm.Chart) -> None:
    with pytest.raises(helm.HelmValuesError) as refusal:
        parent.validate_schema({"ddp-operator": {"replica": 3}})
    assert "'replica'" in str(refusal.value)
