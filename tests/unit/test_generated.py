"""Files that are generated from the code and kept in the repository for those who apply them."""

from pathlib import Path

import yaml
from ddp_operator.api.schema.crd import custom_resource_definition

ROOT = Path(__file__).parents[2]


def test_the_stored_crd_is_that_of_the_models() -> None:
    stored = ROOT / "crds/ddpjobs.yaml"
    assert stored.is_file(), f"{stored} is missing: run make generate"
    crd = yaml.safe_load(stored.read_text())
    assert crd == custom_resource_definition(), f"{stored} is out of date: run make generate"
