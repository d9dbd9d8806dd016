"""Reads an object of another kind so that nothing in it is overlooked.

What is understood is taken out of it; what is still there at the end was not, and is told. So a
field that nobody thought of gives a note by itself.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from ddp_operator.convert.notes import ConversionError

_T = TypeVar("_T")


class Source:
    """An object, or a part of one, from which fields are taken."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise ConversionError(f"{path or 'the document'}: has to hold fields; correct it")
        self._value: dict[str, Any] = value
        self._inner: dict[str, list[Source]] = {}
        self._path = path

    def field(self, name: str) -> str:
        """Return the path of one of its fields."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether a field is there, not taken yet."""
        return name in self._value

    def peek(self, name: str) -> Any:
        """Look at a field without taking it."""
        return self._value.get(name)

    def forget(self, *names: str) -> None:
        """Take fields that mean nothing outside of the cluster, or the project, they are from."""
        for name in names:
            self._value.pop(name, None)

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """Take a whole number."""
        number = self._taken(name, int, "a whole number")
        if number is not None and number < least:
            raise ConversionError(f"{self.field(name)}: is {number}, less than {least}; correct it")
        return number

    def word(self, name: str) -> str | None:
        """Take a text."""
        return self._taken(name, str, "a text")

    def number_or_word(self, name: str) -> int | str | None:
        """Take a whole number, or a text."""
        return self.word(name) if isinstance(self.peek(name), str) else self.integer(name, least=1)

    def flag(self, name: str) -> bool | None:
        """Take what is true or false."""
        return self._taken(name, bool, "true or false")

    def fields(self, name: str) -> dict[str, Any]:
        """Take an object as a whole, for its own fields are carried, or told of, elsewhere."""
        return self._taken(name, dict, "an object with fields") or {}

    def elements(self, name: str) -> "list[Any] | None":
        """Take a list as a whole."""
        return self._taken(name, list, "a list")

    def texts(self, name: str) -> list[str] | None:
        """Take a list of texts."""
        found = self._taken(name, list, "a list of texts")
        if found is not None and not all(isinstance(one, str) for one in found):
            raise ConversionError(f"{self.field(name)}: has to be a list of texts; correct it")
        return found

    def at(self, name: str) -> "Source":
        """Return an object in this one; an empty one where there is none."""
        if name not in self._inner:
            self._inner[name] = [Source(self._value.setdefault(name, {}), self.field(name))]
        return self._inner[name][0]

    def each(self, name: str) -> "list[Source]":
        """Return the objects of a list in this one."""
        if name not in self._inner:
            value = self._value.get(name, [])
            if not isinstance(value, list):
                raise ConversionError(f"{self.field(name)}: has to be a list; correct it")
            paths = (f"{self.field(name)}[{number}]" for number in range(len(value)))
            self._inner[name] = [Source(*pair) for pair in zip(value, paths, strict=True)]
        return self._inner[name]

    def rest(self) -> Iterator[str]:
        """Return the paths of what nobody has taken; as a whole what nobody has looked into."""
        for name, value in self._value.items():
            if name in self._inner:
                for inner in self._inner[name]:
                    yield from inner.rest()
            elif value not in ({}, []):
                yield self.field(name)

    def _taken(self, name: str, kind: type[_T], words: str) -> _T | None:
        value = self._value.pop(name, None)
        # To Python true is a whole number, too.
        if value is not None and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise ConversionError(f"{self.field(name)}: has to be {words}; correct it")
        return value
