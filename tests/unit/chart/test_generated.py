"""values.yaml, what is generated from it, and Chart.yaml."""

import json
from typing import Any

import helm_python as helm
import pytest
import yaml
from ddp_operator import __version__
from ddp_operator.api import kubernetes
from ddp_operator.api.constants import VERSION
from ddp_operator.api.job import DDPJob
from ddp_operator.api.schema.crd import custom_resource_definition
from pydantic import ValidationError

from tests.unit.job.builders import stored_job
from tools.chart.generated import CHART, entries, files
from tools.chart.values import OF_PARENTS, Values

VALUES = (CHART / "values.yaml").read_text()


def test_generated_files_are_up_to_date() -> None:
    for name, text in files(VALUES, (CHART / "README.md").read_text()).items():
        assert (CHART / name).read_text() == text, f"{name} is out of date: run make generate"


def test_readme_has_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    assert '| `metrics.auth.certificateSecret` | `"ddp-operator-metrics"` |' in readme
    assert "| `replicas` | `2` | Number of operator pods. One leader acts; " in readme
    assert readme.count("\n| `") > 40


def test_values_are_fields_of_the_model() -> None:
    read = yaml.safe_load(VALUES)
    fields = [field.alias for field in Values.model_fields.values()]
    assert list(read) == [name for name in fields if name not in OF_PARENTS]
    # A default of these would hide what a parent chart sets.
    assert not {"global", "enabled"} & read.keys()
    assert read["crds"] == {"enabled": True, "keep": True}


def test_every_value_has_a_description_of_whole_sentences() -> None:
    for entry in entries(VALUES):
        assert entry.description.endswith("."), entry.path
        assert entry.description[0].isupper() or entry.description[0] == "`", entry.path


def test_a_description_is_the_first_paragraph_of_a_comment() -> None:
    [keep] = [entry for entry in entries(VALUES) if entry.path == ("crds", "keep")]
    assert keep.description == "Keep the CRD when the release is uninstalled."
    assert (keep.default, keep.is_section) == (True, False)


@pytest.mark.parametrize(
    ("good", "bad", "named"),
    [
        ("replicas: 2\n", "replicas: two\n", "replicas"),
        ("replicas: 2\n", "", "replicas"),
        ("replicas: 2\n", "replica: 2\n", "replica"),
    ],
)
def test_invalid_values_are_refused(good: str, bad: str, named: str) -> None:
    assert good in VALUES
    with pytest.raises(ValidationError, match=named):
        entries(VALUES.replace(good, bad))


def test_helm_lint_accepts_the_chart() -> None:
    report = helm.lint(CHART, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


def test_chart_is_of_this_release() -> None:
    about: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == __version__
    [listed] = yaml.safe_load(about["annotations"]["artifacthub.io/crds"])
    definition = custom_resource_definition()
    assert listed["name"] == definition["metadata"]["name"]
    assert listed["kind"] == definition["spec"]["names"]["kind"]
    assert listed["version"] == VERSION.rpartition("/")[2]
    [example] = yaml.safe_load(about["annotations"]["artifacthub.io/crdsExamples"])
    assert DDPJob.parse(stored_job(**example["spec"])).spec.replicas == 4


def test_schema_is_closed() -> None:
    stored = json.loads((CHART / "values.schema.json").read_text())
    assert stored["additionalProperties"] is False
    assert stored["properties"]["global"]["type"] == "object"


def test_chart_accepts_the_servers_of_the_operator() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    # With "-0", as versions such as v1.30.5-gke.100 count as pre-releases.
    assert about["kubeVersion"] == f">={kubernetes.in_words(kubernetes.OLDEST)}.0-0"
