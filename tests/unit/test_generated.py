"""Generated files that the repository keeps for people who apply them."""

from pathlib import Path

import yaml
from ddp_operator.api.schema.crd import custom_resource_definition

ROOT = Path(__file__).parents[2]


def test_stored_crd_matches_the_models() -> None:
    stored = ROOT / "crds/ddpjobs.yaml"
    assert stored.is_file(), f"{stored} is missing: run make generate"
    crd = yaml.safe_load(stored.read_text())
    assert crd == custom_resource_definition(), f"{stored} is out of date: run make generate"


def test_trainer_has_the_operators_table_of_messages() -> None:
    source = ROOT / "operator/ddp_operator/job/failure/messages.py"
    copy = ROOT / "trainer-image/ddp_trainer/process_group/messages.py"
    assert copy.read_text() == source.read_text(), f"{copy} is out of date: run make generate"
