"""Patches between templates."""

from collections.abc import Mapping
from typing import Any, Final

_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
}
"""Lists with named elements, and the key of each."""
_MERGED: Final = ("containers", "initContainers")
"""Lists with elements that are merged; elements of the other lists are replaced."""


def merged(target: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as Kubernetes' strategic merge does: lists with named elements by element."""
    result = dict(target)
    for name, value in changes.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            result[name] = merged(old, value)
        elif name in _KEYS and isinstance(old, list) and isinstance(value, list):
            result[name] = _by_key(old, value, name)
        else:
            result[name] = value
    return result


def _by_key(old: list[Any], new: list[Any], field: str) -> list[Any]:
    key = _KEYS[field]
    if not all(isinstance(one, dict) for one in (*old, *new)):
        return new  # checked later, where it is used
    changes = {str(one.get(key)): one for one in new}
    kept = []
    for one in old:
        change = changes.pop(str(one.get(key)), None)
        if change is None:
            kept.append(one)
        else:
            kept.append(merged(one, change) if field in _MERGED else change)
    return [*kept, *changes.values()]
