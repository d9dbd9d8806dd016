"""The API stays as small as `docs/concepts/api-shape.md` says."""

from collections.abc import Iterator
from typing import Any

import pytest
from ddp_operator.api.schema.crd import custom_resource_definition

MOST = {"spec": 65, "status": 85}


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the path of each field, and whether it is a leaf: a field without further fields."""
    for name, inner in schema.get("properties", {}).items():
        below = [] if name == "template" else list(fields(inner, f"{path}.{name}"))
        yield f"{path}.{name}", not below
        yield from below
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from fields(inner, path)


@pytest.mark.parametrize("part", MOST)
def test_api_has_few_fields(part: str) -> None:
    """Count what a person has to know. In the spec only leaves count, because only they have
    values; the pod template is one field, and the copy of `accelerator` in overrides is left out.
    In the status all fields count, because a reader meets each of them, but none inside
    `bookkeeping`.
    """
    [version] = custom_resource_definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"][part]
    found = [
        path
        for path, is_leaf in fields(schema)
        if (is_leaf or part == "status")
        and not path.startswith((".overrides.accelerator.", ".bookkeeping."))
    ]
    assert len(found) <= MOST[part], found
