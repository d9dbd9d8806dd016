"""Read the text of manifests, which is not trusted: bounded, and only plain data."""

from collections.abc import Sequence
from datetime import date
from math import isfinite
from typing import Any, Final

import yaml

from ddp_operator.convert.notes import ConversionError

MAX_BYTES: Final = 1024 * 1024
MAX_DOCUMENTS: Final = 100
_MAX_VALUES: Final = 100_000
"""Most values of a file; an alias counts each time, because it can expand to billions."""
_MAX_DEPTH: Final = 100
_MAX_NUMBER: Final = 2**63
"""The usual limit of JSON parsers."""


def read(text: str) -> Sequence[dict[str, Any]]:
    """Return the objects of a file; a List is split into its items.

    Raises:
        ConversionError: it is too long, not YAML, or does not contain objects.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ConversionError(f"the file has more than {MAX_BYTES} bytes; split it")
    found: list[dict[str, Any]] = []
    try:
        budget = _Budget()
        for document in yaml.safe_load_all(text):
            if document is None:
                continue
            plain = budget.plain(document)
            if not isinstance(plain, dict):
                raise ConversionError(
                    "the file contains something other than Kubernetes objects; give manifests, or "
                    "a command line after --"
                )
            found += _items(plain) if plain.get("kind") == "List" else [plain]
            if len(found) > MAX_DOCUMENTS:
                raise ConversionError(f"the file has more than {MAX_DOCUMENTS} objects; split it")
    except ConversionError:
        raise
    except RecursionError:
        raise ConversionError("the file is nested too deeply for a manifest; correct it") from None
    # A value that contradicts its tag, such as !!bool 7, makes PyYAML raise any of these.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        said = " ".join(str(error).split())
        if "{{" in text:
            raise ConversionError(
                "the file is a Helm template, not YAML; give the output of helm template"
            ) from None
        raise ConversionError(f"the file is not YAML: {said}; correct it") from None
    return found


def _items(objects: dict[str, Any]) -> list[dict[str, Any]]:
    items = objects.get("items")
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise ConversionError("items: a List must have a list of objects; correct it")
    return items


class _Budget:
    """The number of values that may still be read."""

    def __init__(self) -> None:
        self._left = _MAX_VALUES

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Copy the values that JSON can hold, without nulls, which Kubernetes ignores."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise ConversionError(
                f"the file has more than {_MAX_VALUES} values, or nests more than {_MAX_DEPTH} "
                "deep; split it"
            )
        if isinstance(value, dict):
            return {
                self.text(str(name)): self.plain(inner, depth + 1)
                for name, inner in value.items()
                if inner is not None
            }
        if isinstance(value, list):
            return [self.plain(inner, depth + 1) for inner in value if inner is not None]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, int) and abs(value) >= _MAX_NUMBER:
            raise ConversionError("the file has a number of more than 64 bits; correct it")
        if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
            return value
        raise ConversionError(f"the file has a value of type {type(value).__name__}; correct it")

    @staticmethod
    def text(value: str) -> str:
        """Return a text that can be written again."""
        value.encode()  # raises for a lone surrogate
        return value
