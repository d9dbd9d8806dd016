"""JSON merge patches (RFC 7386). None of these functions changes its arguments."""

from collections.abc import Mapping
from typing import Any


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that turns `old` into `new`; empty if they are equal.

    Neither may contain null values. For Python, true and 1 are equal, for JSON they are not.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif value != old[key] or isinstance(value, bool) is not isinstance(old[key], bool):
            patch[key] = value
    return patch


def patched(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a patch to an object."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = patched(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = value
    return result
