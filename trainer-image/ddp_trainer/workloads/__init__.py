"""Workloads that can be trained: data, a model, a loss and a score, without anything of DDP.

Bundled workloads have a name; others are given as `package.module:factory`. Names and options are
checked without importing torch. The workload's module is imported when it is loaded.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.exit_codes import ConfigurationError

if TYPE_CHECKING:
    from ddp_trainer.workloads.base import Workload

NAMES: Mapping[str, str] = {
    name: f"ddp_trainer.workloads.{name}:load" for name in ("digits", "gpt", "synthetic")
}
"""Workload name → `package.module:factory` of the function that builds it."""

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_name(name: str) -> None:
    """Check that `name` could be a workload, without importing anything.

    Raises:
        ConfigurationError: it is neither a bundled one nor has the form `package.module:factory`.
    """
    if name not in NAMES and not _FACTORY.fullmatch(name):
        raise ConfigurationError(
            f"--workload {name} is unknown: choose from {', '.join(sorted(NAMES))}, or name your "
            "own as package.module:factory"
        )


def load(name: str, options: Mapping[str, str] | None = None) -> Workload:
    """Import and build a workload.

    `options`: text for keyword arguments of the workload's factory, converted to the types of its
    annotations (int, float, bool, str or Path, any of them optional).

    Raises:
        ConfigurationError: there is no such factory, it does not take these options, or the
            workload has no training or test samples.
    """
    factory = _factory(name)
    workload: Workload = factory(**_arguments(name, factory, options or {}))
    for purpose, samples in (("train", workload.train), ("test", workload.test)):
        if len(samples) < 1:
            raise ConfigurationError(f"--workload {name} has no {purpose} samples: it needs one")
    return workload


def _factory(name: str) -> Callable[..., Workload]:
    module_name, _, attribute = NAMES.get(name, name).partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but fails to import another one
        raise ConfigurationError(
            f"--workload {name}: there is no module {error.name}; install it in the image, or put "
            "its folder on PYTHONPATH"
        ) from error
    factory: Any = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigurationError(f"--workload {name}: {module_name} has no function {attribute}")
    return typing.cast("Callable[..., Workload]", factory)


def _arguments(
    name: str, factory: Callable[..., Workload], options: Mapping[str, str]
) -> dict[str, Any]:
    known = [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    types = typing.get_type_hints(factory)
    arguments: dict[str, Any] = {}
    for option, text in options.items():
        if option not in known:
            raise ConfigurationError(
                f"--workload-option {option} is not an option of workload {name}: choose from "
                f"{', '.join(known) or 'none'}"
            )
        try:
            arguments[option] = _convert(text, types.get(option, str))
        except ValueError as error:
            raise ConfigurationError(f"--workload-option {option}={text}: {error}") from error
    return arguments


def _convert(text: str, wanted: Any) -> Any:
    kinds = [kind for kind in typing.get_args(wanted) or (wanted,) if kind is not type(None)]
    (kind,) = kinds if len(kinds) == 1 else (str,)
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError("set it to true or false")
        return text == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise ValueError(f"set it to a {what}") from None
    return Path(text) if kind is Path else text
