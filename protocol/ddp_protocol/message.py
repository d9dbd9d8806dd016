"""Reads untrusted JSON into frozen dataclasses, within the bounds of their fields, and writes it.

JSON has the fields in camelCase. Unknown ones are ignored. One that is null, NaN or infinite counts
as missing.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")
_Check = Callable[[Any, str], Any]
"""Returns a value as its field has it. Called with the value and the field's name."""


class Bounds(NamedTuple):
    """Bounds of a number, or of the length of a string or a list."""

    least: float
    most: float


Count = Annotated[int, Bounds(0, 2**53 - 1)]
"""Up to the largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""
_ANY: Final = {
    int: Bounds(0, math.inf),
    float: Bounds(-sys.float_info.max, sys.float_info.max),
}
OR_NONE: Final = object()
"""Marks a field that is left out if it is invalid."""


class InvalidMessageError(ValueError):
    """A message is invalid; the text names the field."""


class Message:
    """Base class of messages."""

    MAX_BYTES: ClassVar[int] = 64 * 1024
    """JSON takes up to 25 times as much memory while it is read."""

    @classmethod
    def read(cls, content: bytes | str) -> Self:
        """Parse a message.

        Raises:
            InvalidMessageError: it is too large or not JSON, or a field is missing or wrong.
        """
        if len(content) > cls.MAX_BYTES:
            raise InvalidMessageError(f"the document has more than {cls.MAX_BYTES} bytes")
        message = from_json(cls, content)
        message.check()
        return message

    def check(self) -> None:
        """Check what the fields' own bounds cannot express.

        Raises:
            InvalidMessageError: a field is wrong.
        """


def to_json(value: object) -> str:
    """Return one line of JSON, without fields that are None, NaN or infinite."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[_T], text: str | bytes) -> _T:
    """Parse a dataclass.

    Raises:
        InvalidMessageError: the text is not a JSON object, or a field is missing or wrong.
    """
    try:
        document = json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise InvalidMessageError("the document is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidMessageError(f"the document is not JSON: {error}") from None
    found: _T = _object(kind, document, "")
    return found


def utc(unix_time: float) -> str:
    """Format a time to the second, as in 2026-11-21T03:00:00Z."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_to_the_millisecond(unix_time: float) -> str:
    """Format a time to the millisecond, as in 2026-11-21T03:00:00.250Z."""
    time = datetime.fromtimestamp(unix_time, UTC).replace(tzinfo=None)
    return time.isoformat(timespec="milliseconds") + "Z"


def moment(text: str) -> datetime:
    """Return a time in UTC, to the second. A text without a zone is in UTC.

    Raises:
        ValueError: the text is no time, or of a year that cannot be stored.
    """
    time = datetime.fromisoformat(text.upper())
    # Every RFC 3339 writer spells these years with four digits in any time zone.
    if time.year not in range(1970, 9999):
        raise ValueError(f"year {time.year} is out of range")
    return time.replace(tzinfo=time.tzinfo or UTC, microsecond=0).astimezone(UTC)


def _in_a_zone(text: str) -> None:
    if datetime.fromisoformat(text.upper()).tzinfo is None:
        raise ValueError("the time has no time zone")


Time = Annotated[str, Bounds(1, 40), moment]
"""As in 2026-11-21T03:00:00.250Z."""
ZonedTime = Annotated[Time, _in_a_zone]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        items = {_camel_case(field.name): getattr(value, field.name) for field in fields(value)}
        return {key: _plain(item) for key, item in items.items() if _is_known(item)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if _is_known(item)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


@cache
def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _object(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidMessageError(f"{name or 'the document'} must be a JSON object")
    found: dict[str, Any] = {}
    for attribute, key, check, is_needed, is_optional in _fields_of(kind):
        item, path = value.get(key), f"{name}.{key}" if name else key
        if _is_known(item):
            try:
                found[attribute] = check(item, path)
            except InvalidMessageError:
                if not is_optional:
                    raise
        elif is_needed:
            raise InvalidMessageError(f"{path} is missing")
    return kind(**found)


@cache
def _fields_of(kind: Any) -> list[tuple[str, str, _Check, bool, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (
            field.name,
            _camel_case(field.name),
            _check_of(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
            OR_NONE in getattr(hints[field.name], "__metadata__", ()),
        )
        for field in fields(kind)
    ]


def _check_of(hint: Any, limits: tuple[Any, ...] = ()) -> _Check:
    """Return the check of a type. `limits`: the rest of its annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    bounds = next((each for each in limits if isinstance(each, Bounds)), None)
    check: _Check
    if origin is Annotated:
        check = _check_of(arguments[0], arguments[1:])
    elif origin in (Union, UnionType):  # X | None, and the value is not None
        [choice] = [each for each in arguments if each is not NoneType]
        check = _check_of(choice, limits)
    elif is_dataclass(hint):
        check = partial(_object, hint)
    elif origin is tuple:
        check = partial(_list, _check_of(arguments[0]), bounds)
    elif origin is Mapping:
        check = partial(_mapping, _check_of(arguments[1]), bounds)
    elif origin is Literal or hint is bool:
        check = partial(_choice, arguments or (True, False))
    elif hint is str:
        check = partial(_text, bounds, [each for each in limits if callable(each)])
    else:
        check = partial(_number, hint, bounds or _ANY[hint])
    return check


def _list(check: _Check, bounds: Bounds | None, value: Any, name: str) -> tuple[Any, ...]:
    if type(value) is not list or not _fits(len(value), bounds):
        most = f" of {bounds.least} to {bounds.most} items" if bounds else ""
        raise _wrong(name, f"a list{most}", value)
    return tuple([check(item, name) for item in value])


def _mapping(check: _Check, bounds: Bounds | None, value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict or not _fits(len(value), bounds):
        raise _wrong(name, "a JSON object", value)
    return {key: check(item, name) for key, item in value.items() if _is_known(item)}


def _choice(choices: tuple[Any, ...], value: Any, name: str) -> Any:
    if type(value) is not type(choices[0]) or value not in choices:
        raise _wrong(name, " or ".join(map(json.dumps, choices)), value)
    return value


def _text(
    bounds: Bounds | None, checks: list[Callable[[str], object]], value: Any, name: str
) -> str:
    if type(value) is not str or not _fits(len(value), bounds):
        most = f" of {bounds.least} to {bounds.most} characters" if bounds else ""
        raise _wrong(name, f"a string{most}", value)
    try:
        if bounds is not None:
            value.encode()  # refuses lone surrogates
        for check in checks:
            check(value)
    except ValueError as error:
        raise InvalidMessageError(f"{name}: {error}") from None
    return value


def _number(kind: type[Any], bounds: Bounds, value: Any, name: str) -> Any:
    least, most = bounds
    # Not isinstance: bool is a subclass of int.
    if type(value) in (kind, int) and least <= value <= most:
        return value if kind is int else float(value)
    wanted = "a whole number" if kind is int else "a number"
    if bounds is _ANY[int]:
        wanted += ", 0 or more"
    elif bounds is not _ANY[float]:
        wanted += f" from {least} to {most}"
    raise _wrong(name, wanted, value)


def _fits(value: float, bounds: Bounds | None) -> bool:
    return bounds is None or bounds.least <= value <= bounds.most


def _wrong(name: str, wanted: str, value: Any) -> InvalidMessageError:
    return InvalidMessageError(f"{name} must be {wanted}, not {value!r:.80}")
