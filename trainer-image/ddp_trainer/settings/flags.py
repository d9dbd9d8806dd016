"""Command-line flags that are declared once, as fields of dataclasses.

The field `warmup_steps: int = flag(0, "…")` defines the flag --warmup-steps: its name, type,
default, range and help. A dataclass checks its own values, so code can construct one without a
command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import numbers
import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from ddp_trainer.exit_codes import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Fields = TypeVar("Fields", bound=DataclassInstance)

_NUMBERS: dict[type[Any], tuple[type[Any], str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
}


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigurationError for a wrong flag, instead of exiting with code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print."""
        raise ConfigurationError(f"{message} (--help lists the flags)")


class Unchosen(float):
    """A default that is adjusted where it contradicts a value that the user chose."""


class Settings:
    """Base of settings dataclasses; checks the values on construction."""

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            ConfigurationError: a value has the wrong type or is out of its range.
        """
        for field, kind in _flags_of(type(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None and kind in _NUMBERS:
                _check_number(field, kind, value)


def flag(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    metavar: str | None = None,
) -> Any:
    """Declare a field that is also a flag; `add_flags` lists the supported types."""
    return dataclasses.field(
        default=default,
        metadata={"help": meaning, "minimum": minimum, "maximum": maximum, "metavar": metavar},
    )


def add_flags(parser: argparse.ArgumentParser, fields_of: type[DataclassInstance]) -> None:
    """Add the flags of a dataclass, and those of the dataclasses among its fields.

    bool: --name and --no-name. Literal: one of its values. tuple[int, ...]: numbers separated by
    commas. Any other type, optional or not: its constructor parses the text.
    """
    for field, kind in _flags_of(fields_of):
        settings: dict[str, Any] = {"default": field.default, "help": field.metadata["help"]}
        if field.default is None:
            settings["default"] = argparse.SUPPRESS
        if field.metadata["metavar"] is not None:
            settings["metavar"] = field.metadata["metavar"]
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is Literal:
            settings["choices"] = typing.get_args(kind)
        elif typing.get_origin(kind) is tuple:
            settings.update(type=_integers, metavar="N,N,...")
        else:
            settings["type"] = kind
        parser.add_argument(flag_of(field.name), **settings)
    for _, kind in _groups_of(fields_of):
        add_flags(parser, kind)


def take(values: argparse.Namespace, fields_of: type[Fields]) -> Fields:
    """Construct a dataclass, with the dataclasses among its fields, from parsed values.

    Raises:
        ConfigurationError: a value is out of its range.
    """
    given = vars(values)
    groups = {field.name: take(values, kind) for field, kind in _groups_of(fields_of)}
    names = [field.name for field in dataclasses.fields(fields_of) if field.name in given]
    return fields_of(**groups, **{name: given[name] for name in names})


def as_arguments(message: str) -> str:
    """Rewrite a message about flags for a caller who passed keyword arguments."""
    return re.sub("--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), message)


def _flags_of(
    fields_of: type[DataclassInstance],
) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Yield each field that is a flag, with its type; for an optional one, the type inside."""
    hints = typing.get_type_hints(fields_of)
    for field in dataclasses.fields(fields_of):
        if "help" in field.metadata:
            yield field, _without_none(hints[field.name])


def _groups_of(
    fields_of: type[DataclassInstance],
) -> Iterator[tuple[dataclasses.Field[Any], type[Any]]]:
    """Yield the fields that are dataclasses."""
    hints = typing.get_type_hints(fields_of)
    for field in dataclasses.fields(fields_of):
        if dataclasses.is_dataclass(hints[field.name]):
            yield field, hints[field.name]


def _check_number(field: dataclasses.Field[Any], kind: type[Any], value: Any) -> None:
    name, (wanted, what) = flag_of(field.name), _NUMBERS[kind]
    if isinstance(value, bool) or not isinstance(value, wanted) or math.isnan(float(value)):
        raise ConfigurationError(f"{name} is {value!r}: set it to {what}")
    minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
    if minimum is not None and float(value) < minimum:
        raise ConfigurationError(f"{name} is {value}: set it to {minimum} or more")
    if maximum is not None and float(value) > maximum:
        raise ConfigurationError(f"{name} is {value}: set it to {maximum} or less")


def _without_none(kind: Any) -> Any:
    """Return T for `T | None`; other types stay as they are."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    (something,) = (one for one in typing.get_args(kind) if one is not type(None))
    return something


def flag_of(field: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + field.replace("_", "-")


def _integers(text: str) -> Sequence[int]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers, such as 0,2"
        ) from None
