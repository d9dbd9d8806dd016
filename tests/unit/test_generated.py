"""Generated files that the repository keeps for people who apply them."""

from pathlib import Path

import yaml
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_protocol.error_texts import TOPICS

from tools import error_page

ROOT = Path(__file__).parents[2]


def test_stored_crd_matches_the_models() -> None:
    stored = ROOT / "crds/ddpjobs.yaml"
    assert stored.is_file(), f"{stored} is missing: run make generate"
    crd = yaml.safe_load(stored.read_text())
    assert crd == custom_resource_definition(), f"{stored} is out of date: run make generate"


def test_page_of_errors_has_all_texts() -> None:
    stored = ROOT / error_page.PATH
    text = stored.read_text()
    assert text == error_page.page(), f"{stored} is out of date: run make generate"
    examples = [known.example for texts in TOPICS.values() for known in texts]
    assert all(f"```text\n{example}\n```" in text for example in examples)
    assert text.count("*What to do:*") == len(examples)
