"""What is generated from the model of the values, and what Chart.yaml says by hand."""

import json
from typing import Any

import helm_python as helm
import yaml
from ddp_operator import __version__
from ddp_operator.api import kubernetes
from ddp_operator.api.constants import VERSION
from ddp_operator.api.job import DDPJob
from ddp_operator.api.schema.crd import custom_resource_definition

from tests.unit.job.builders import stored_job
from tools.chart.generated import CHART, files
from tools.chart.values import Values


def test_the_stored_files_are_those_of_the_model() -> None:
    for name, text in files((CHART / "README.md").read_text()).items():
        assert (CHART / name).read_text() == text, f"{name} is out of date: run make generate"


def test_the_readme_names_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    assert '| `metrics.auth.certificateSecret` | `"ddp-operator-metrics"` |' in readme
    assert "| `replicas` | `2` | One acts, the others stand by. |" in readme
    assert readme.count("\n| `") > 40


def test_the_values_mean_what_the_model_says() -> None:
    read = yaml.safe_load((CHART / "values.yaml").read_text())
    assert Values.model_validate(read) == Values()
    # What a parent chart says has no default that would hide it.
    assert not {"global", "enabled"} & read.keys()
    assert read["crds"] == {"enabled": True, "keep": True}


def test_helm_finds_nothing_to_mend() -> None:
    report = helm.lint(CHART, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


def test_the_chart_is_of_this_release() -> None:
    about: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == __version__
    [listed] = yaml.safe_load(about["annotations"]["artifacthub.io/crds"])
    definition = custom_resource_definition()
    assert listed["name"] == definition["metadata"]["name"]
    assert listed["kind"] == definition["spec"]["names"]["kind"]
    assert listed["version"] == VERSION.rpartition("/")[2]
    [example] = yaml.safe_load(about["annotations"]["artifacthub.io/crdsExamples"])
    assert DDPJob.parse(stored_job(**example["spec"])).spec.replicas == 4


def test_the_schema_is_one_that_any_validator_reads() -> None:
    stored = json.loads((CHART / "values.schema.json").read_text())
    assert stored["additionalProperties"] is False
    assert stored["properties"]["global"]["type"] == "object"


def test_the_chart_asks_for_the_servers_that_the_operator_accepts() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    # With "-0", as versions such as v1.30.5-gke.100 count as pre-releases.
    assert about["kubeVersion"] == f">={kubernetes.in_words(kubernetes.OLDEST)}.0-0"
