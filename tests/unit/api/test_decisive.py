"""Status fields that decisions read."""

from typing import Any

import pytest
from ddp_operator.api.schema.comparison import compare
from ddp_operator.api.status import DECISIVE, decisive_names


@pytest.mark.parametrize(
    ("lacking", "needed"),
    [
        ("status", True),
        ("status.world", True),
        ("status.world.members", True),
        ("status.failures[].class", True),
        ("status.progress", True),
        ("status.progress.step", True),
        ("status.bookkeeping.pace.turns", True),
        ("status.progress.lastStepTime", False),
        ("status.goodput", False),
        ("status.goodput.outage", False),
        ("status.phase=Novel", True),
        ("spec.world", False),
        ("spec.backend=gloo", False),
    ],
)
def test_crd_must_have_decisive_fields_and_all_words(lacking: str, *, needed: bool) -> None:
    assert decisive_names([lacking]) == ({lacking} if needed else set())


def test_listed_fields_exist() -> None:
    nothing = compare({"spec": {"versions": [{"name": "v1alpha1", "schema": {}}]}})
    assert decisive_names(nothing.lacking) == {"status"}
    empty: dict[str, Any] = {"properties": {"status": {"properties": {}}}}
    versions = [{"name": "v1alpha1", "schema": {"openAPIV3Schema": empty}}]
    lacking = decisive_names(compare({"spec": {"versions": versions}}).lacking)
    assert lacking == {f"status.{name.partition('.')[0]}" for name in DECISIVE}
