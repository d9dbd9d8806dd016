"""Generated files that the repository keeps for people who apply them."""

from pathlib import Path

import pytest
import yaml
from ddp_operator.api.schema.crd import custom_resource_definition

ROOT = Path(__file__).parents[2]


def test_stored_crd_matches_the_models() -> None:
    stored = ROOT / "crds/ddpjobs.yaml"
    assert stored.is_file(), f"{stored} is missing: run make generate"
    crd = yaml.safe_load(stored.read_text())
    assert crd == custom_resource_definition(), f"{stored} is out of date: run make generate"


@pytest.mark.parametrize(
    ("source", "copy"),
    [
        ("job/failure/messages.py", "process_group/messages.py"),
        ("endpoints/connections.py", "launcher/status_server/connections.py"),
        ("endpoints/refusals.py", "launcher/status_server/refusals.py"),
    ],
)
def test_trainer_has_the_operators_files(source: str, copy: str) -> None:
    original = ROOT / "operator/ddp_operator" / source
    copied = ROOT / "trainer-image/ddp_trainer" / copy
    assert copied.read_text() == original.read_text(), f"{copied} is out of date: run make generate"
