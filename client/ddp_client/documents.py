"""Read manifests from files, which are not trusted: bounded, and only plain data."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from math import isfinite
from typing import IO, Any, Final

import yaml

MAX_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of a file: room for a job and for a ConfigMap, which has at most 1 MiB."""
MAX_DOCUMENTS: Final = 100
_MAX_VALUES: Final = 100_000
"""Most values of a file; an alias counts each time, because it can expand to billions."""
_MAX_DEPTH: Final = 100
_MAX_NUMBER: Final = 2**63
"""The usual limit of JSON parsers."""
_LONGEST_NUMBER: Final = 64
"""Most characters of a number: YAML 1.1 has numbers like 1:59:59, which take quadratic time."""
_SHOWN: Final = 300
_STARTS: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_LARGE: Final = (
    f"the file has more than {_MAX_VALUES} values, or nests more than {_MAX_DEPTH} deep; split it"
)


class DocumentError(ValueError):
    """A file cannot be read as manifests; the text says what to correct."""


def read_text(file: IO[bytes]) -> str:
    """Return the text of an open file.

    Raises:
        DocumentError: it is too long, or not UTF-8.
        OSError: it cannot be read.
    """
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the file has more than {MAX_BYTES} bytes; split it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"the file is not UTF-8: {error}; correct it") from None


def read(text: str) -> Sequence[dict[str, Any]]:
    """Return the objects of a file; a List is split into its items.

    Raises:
        DocumentError: it is not YAML, has too many values, or does not contain objects.
    """
    objects: list[dict[str, Any]] = []
    try:
        for plain in _plain_documents(text):
            if not isinstance(plain, dict):
                raise DocumentError(
                    "the file contains something other than Kubernetes objects; correct it"
                )
            objects += _items(plain) if plain.get("kind") == "List" else [plain]
            if len(objects) > MAX_DOCUMENTS:
                raise DocumentError(f"the file has more than {MAX_DOCUMENTS} objects; split it")
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("the file refers to itself; correct it") from None
    # A value that contradicts its tag, such as !!bool 7, makes PyYAML raise any of these.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        if "{{" in text:
            raise DocumentError(
                "the file is a Helm template, not YAML; give the output of helm template"
            ) from None
        problem = " ".join(str(error)[: 4 * _SHOWN].split())[:_SHOWN]
        raise DocumentError(f"the file is not YAML: {problem}; correct it") from None
    return objects


def nested(document: Any, *names: str) -> Any:
    """Return a value within an object of any structure, or None."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def mapping(document: Any, *names: str) -> dict[str, Any]:
    """Return an object within an object of any structure; empty if there is none."""
    value = nested(document, *names)
    return value if isinstance(value, dict) else {}


def as_stored(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with the metadata that a user cannot set, but each job has."""
    added = {"uid": "", "creationTimestamp": "1970-01-01T00:00:00Z"}
    return {**job, "metadata": {"namespace": "default", **job["metadata"], **added}}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader, in C if possible, with a limit where it takes more than linear time."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._left = _MAX_VALUES

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings of `<<` keys; each merge copies, so nested ones grow exponentially."""
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                continue
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(merged, yaml.MappingNode):
                    self.flatten_mapping(merged)
                    self._left -= 1 + len(merged.value)
                if self._left < 0:
                    raise DocumentError(_LARGE)
        super().flatten_mapping(node)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """Return a number that is short enough to be one."""
        if len(node.value) > _LONGEST_NUMBER:
            raise DocumentError("the file has a number of more than 64 bits; correct it")
        is_float = node.tag.endswith("float")
        number: float = (
            self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)
        )
        return number


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _plain_documents(text: str) -> Iterator[Any]:
    """Yield the documents that are not empty.

    The first pass counts and builds nothing, because PyYAML needs a thousand bytes for each value.
    """
    values = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, _STARTS) - isinstance(event, _ENDS)
        values += isinstance(event, (yaml.NodeEvent, yaml.DocumentStartEvent))
        if values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise DocumentError(_LARGE)
    budget = _Budget()
    for document in yaml.load_all(text, Loader=_Loader):
        if document is not None:
            yield budget.plain(document)


def _items(objects: dict[str, Any]) -> list[dict[str, Any]]:
    items = objects.get("items")
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise DocumentError("items: a List must have a list of objects; correct it")
    return items


class _Budget:
    """The number of values that may still be read."""

    def __init__(self) -> None:
        self._left = _MAX_VALUES

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Copy the values that JSON can hold, without nulls, which Kubernetes ignores."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise DocumentError(_LARGE)
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
            raise DocumentError("the file has a number of more than 64 bits; correct it")
        if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
            return value
        raise DocumentError(f"the file has a value of type {type(value).__name__}; correct it")

    @staticmethod
    def text(value: str) -> str:
        """Return a text that can be written again."""
        value.encode()  # raises for a lone surrogate
        return value
