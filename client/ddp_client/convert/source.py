"""Read an object so that no field is overlooked.

A field is removed when it is read. Fields that remain at the end get a note, so an unexpected field
is never lost silently.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from ddp_client.convert.notes import ConversionError

_T = TypeVar("_T")


class Source:
    """An object, or a part of one; reading a field removes it."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise ConversionError(f"{path or 'the document'}: must be an object; correct it")
        self._value: dict[str, Any] = value
        self._inner: dict[str, list[Source]] = {}
        self._path = path

    def field(self, name: str) -> str:
        """Return the path of one of its fields."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Tell whether a field exists and was not read yet."""
        return name in self._value

    def peek(self, name: str) -> Any:
        """Return a field without removing it."""
        return self._value.get(name)

    def forget(self, *names: str) -> None:
        """Remove fields that have no meaning outside their cluster or project."""
        for name in names:
            self._value.pop(name, None)

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """Read an integer."""
        number = self._taken(name, int, "a whole number")
        if number is not None and number < least:
            raise ConversionError(f"{self.field(name)}: {number} is less than {least}; correct it")
        return number

    def word(self, name: str) -> str | None:
        """Read a string."""
        return self._taken(name, str, "a string")

    def number_or_word(self, name: str) -> int | str | None:
        """Read an integer or a string."""
        return self.word(name) if isinstance(self.peek(name), str) else self.integer(name, least=1)

    def flag(self, name: str) -> bool | None:
        """Read a boolean."""
        return self._taken(name, bool, "true or false")

    def fields(self, name: str) -> dict[str, Any]:
        """Read a whole object; its fields are handled elsewhere."""
        return self._taken(name, dict, "an object") or {}

    def elements(self, name: str) -> "list[Any] | None":
        """Read a whole list."""
        return self._taken(name, list, "a list")

    def texts(self, name: str) -> list[str] | None:
        """Read a list of strings."""
        words = self._taken(name, list, "a list of strings")
        if words is not None and not all(isinstance(one, str) for one in words):
            raise ConversionError(f"{self.field(name)}: must be a list of strings; correct it")
        return words

    def at(self, name: str) -> "Source":
        """Return an inner object, empty if there is none."""
        if name not in self._inner:
            self._inner[name] = [Source(self._value.setdefault(name, {}), self.field(name))]
        return self._inner[name][0]

    def each(self, name: str) -> "list[Source]":
        """Return the objects of an inner list."""
        if name not in self._inner:
            value = self._value.get(name, [])
            if not isinstance(value, list):
                raise ConversionError(f"{self.field(name)}: must be a list; correct it")
            paths = (f"{self.field(name)}[{number}]" for number in range(len(value)))
            self._inner[name] = [Source(*pair) for pair in zip(value, paths, strict=True)]
        return self._inner[name]

    def rest(self) -> Iterator[str]:
        """Yield the paths of fields that were not read; an unread object is one path."""
        for name, value in self._value.items():
            if name in self._inner:
                for inner in self._inner[name]:
                    yield from inner.rest()
            elif value not in ({}, []):
                yield self.field(name)

    def _taken(self, name: str, kind: type[_T], words: str) -> _T | None:
        value = self._value.pop(name, None)
        # In Python, True is an int.
        if value is not None and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise ConversionError(f"{self.field(name)}: must be {words}; correct it")
        return value
