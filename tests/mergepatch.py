"""JSON merge patches as the API server applies them, for the tests' own servers."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.ports import Manifest


def merged(target: Manifest, patch: Manifest) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7386)."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            inner = result.get(name)
            result[name] = merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[name] = value
    return result
