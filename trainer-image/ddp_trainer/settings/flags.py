"""Flags that come from fields: a dataclass says name, type, default and meaning once.

A field `warmup_steps: int = flag(0, "…")` makes the flag --warmup-steps. Options that belong
together so live together, and the command line needs no list of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from ddp_trainer.exit_codes import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Fields = TypeVar("Fields", bound=DataclassInstance)


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong flag is a ConfigurationError and not exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed."""
        raise ConfigurationError(f"{message} (--help lists the flags)")


def flag(
    default: Any, meaning: str, *, minimum: float | None = None, maximum: float | None = None
) -> Any:
    """A field that is a flag, of one of the types that `add_flags` knows."""
    return dataclasses.field(
        default=default, metadata={"help": meaning, "minimum": minimum, "maximum": maximum}
    )


def add_flags(parser: argparse.ArgumentParser, fields_of: type[DataclassInstance]) -> None:
    """Add a flag for each field.

    bool: --name and --no-name. Literal: one of its values. tuple[int, ...]: numbers with commas
    between them. Any other type, optional or not: what its constructor makes of the text.
    """
    hints = typing.get_type_hints(fields_of)
    for field in dataclasses.fields(fields_of):
        kind = _without_none(hints[field.name])
        settings: dict[str, Any] = {"default": field.default, "help": field.metadata["help"]}
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is Literal:
            settings["choices"] = typing.get_args(kind)
        elif typing.get_origin(kind) is tuple:
            settings.update(type=_integers, metavar="N,N,...")
        else:
            settings["type"] = kind
        parser.add_argument(_name(field.name), **settings)


def chosen(
    parser: argparse.ArgumentParser, arguments: Sequence[str], fields: Collection[str]
) -> set[str]:
    """Those of the fields whose flags are among the arguments, which the parser takes.

    The parser's defaults of these fields are lost.
    """
    parser.set_defaults(**dict.fromkeys(fields))
    values, _ = parser.parse_known_args(arguments)
    return {field for field in fields if getattr(values, field) is not None}


def take(values: argparse.Namespace, fields_of: type[Fields]) -> Fields:
    """Move what belongs to the fields out of the parsed values.

    Raises:
        ConfigurationError: a value is out of its range.
    """
    taken: dict[str, Any] = {}
    for field in dataclasses.fields(fields_of):
        value = taken[field.name] = vars(values).pop(field.name)
        if value is not None:
            check_range(field.name, value, **_range(field))
    return fields_of(**taken)


def check_range(
    field: str, value: float, *, minimum: float | None = None, maximum: float | None = None
) -> None:
    """Check the value of a flag.

    Raises:
        ConfigurationError: it is out of its range.
    """
    if minimum is not None and value < minimum:
        raise ConfigurationError(f"{_name(field)} is {value}: set it to {minimum} or more")
    if maximum is not None and value > maximum:
        raise ConfigurationError(f"{_name(field)} is {value}: set it to {maximum} or less")


def _without_none(kind: Any) -> Any:
    """The type that an optional one is of when there is something."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    (something,) = (one for one in typing.get_args(kind) if one is not type(None))
    return something


def _range(field: dataclasses.Field[Any]) -> dict[str, float | None]:
    return {limit: field.metadata[limit] for limit in ("minimum", "maximum")}


def _name(field: str) -> str:
    return "--" + field.replace("_", "-")


def _integers(text: str) -> Sequence[int]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers, such as 0,2"
        ) from None
