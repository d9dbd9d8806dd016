"""JSON that may be nested deeper than orjson reads or writes, as users can nest a job."""

import json
from typing import Any

import orjson


def dumps(value: Any) -> str:
    """Return a value as JSON."""
    try:
        return orjson.dumps(value).decode()  # orjson allocates three times the space for bytes
    except TypeError:  # nested a few hundred levels deep
        return json.dumps(value)


def loads(text: str | bytes) -> Any:
    """Return parsed JSON.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
