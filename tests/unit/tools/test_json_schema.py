"""The JSON Schema of DDPJob, with which editors check manifests."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ddp_operator.api.constants import KIND

from tests import good_manifests
from tests.full_status import FULL_STATUS
from tests.good_manifests import GOOD_MANIFESTS
from tools.json_schema import PATH

EXAMPLES = sorted(Path("manifests/examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft7Validator(json.loads(PATH.read_text()))


def _jobs(example: Path) -> list[dict[str, Any]]:
    objects = yaml.safe_load_all(example.read_text())
    return [each for each in objects if each["kind"] == KIND]


def test_good_manifests_are_valid() -> None:
    errors = {n: [*VALIDATOR.iter_errors(manifest)] for n, manifest in GOOD_MANIFESTS.items()}
    assert {name: found for name, found in errors.items() if found} == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid_and_names_the_schema(example: Path) -> None:
    jobs = _jobs(example)
    assert jobs
    assert not [error for job in jobs for error in VALIDATOR.iter_errors(job)]
    named = f"# yaml-language-server: $schema=../../{PATH}\napiVersion: {jobs[0]['apiVersion']}"
    assert example.read_text().count(named) == len(jobs)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"replicsa": 2}, "replicsa"),
        ({"replicas": "two"}, "two"),
        ({"elastic": {"minReplica": 2}}, "minReplica"),
        ({"backend": "mpi"}, "mpi"),
    ],
)
def test_error_names_the_wrong_field(spec: dict[str, Any], where: str) -> None:
    [error] = VALIDATOR.iter_errors(good_manifests.job(**spec))
    assert where in error.message


def test_full_status_is_valid() -> None:
    assert not [*VALIDATOR.iter_errors({**good_manifests.job(), "status": FULL_STATUS})]
