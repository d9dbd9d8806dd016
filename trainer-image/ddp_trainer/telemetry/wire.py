"""Converts frozen dataclasses to JSON with camelCase keys, and back with checked types.

Any script may write the JSON, so a wrong type is an error that names the field.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def to_json(value: object) -> str:
    """Return one line of JSON, without fields that are None, NaN or infinite."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[_T], text: str | bytes) -> _T:
    """Parse a dataclass; unknown keys are ignored.

    Raises:
        ValueError: the text is not a JSON object, or a field is missing or has the wrong type.
    """
    try:
        return _dataclass(kind, json.loads(text), "the document")
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None


def utc(unix_time: float) -> str:
    """Format a time to the second, as in 2026-11-21T03:00:00Z."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_to_the_millisecond(unix_time: float) -> str:
    """Format a time to the millisecond, as in 2026-11-21T03:00:00.250Z."""
    moment = datetime.fromtimestamp(unix_time, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"


def camel_case(name: str) -> str:
    """Convert `total_steps` to `totalSteps`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        items = {camel_case(field.name): getattr(value, field.name) for field in fields(value)}
        return {key: _plain(item) for key, item in items.items() if _is_known(item)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if _is_known(item)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _dataclass(kind: type[_T], value: Any, name: str) -> _T:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object")
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        key = camel_case(field.name)
        if value.get(key) is not None:
            found[field.name] = _checked(hints[field.name], value[key], key)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{key} is missing")
    return kind(**found)


def _checked(hint: Any, value: Any, name: str) -> Any:
    if isinstance(hint, types.UnionType):  # X | None, and value is not None
        [hint] = [choice for choice in get_args(hint) if choice is not types.NoneType]
    if is_dataclass(hint):
        return _dataclass(hint, value, name)  # type: ignore[arg-type]
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_checked(get_args(hint)[0], item, name) for item in value)
    if get_origin(hint) is Mapping and isinstance(value, dict):
        return {key: _checked(get_args(hint)[1], item, name) for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    wanted = {
        bool: "true or false",
        int: "a whole number, 0 or more",
        float: "a number",
        str: "a string",
    }
    raise ValueError(f"{name} must be {wanted.get(hint, 'of another type')}, not {value!r:.80}")
