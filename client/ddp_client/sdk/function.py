"""Turn a function of a notebook into a script.

Only the function's source is sent, and its arguments as JSON. Other names that it needs are found
before anything is sent, so that no rank fails with a NameError an hour later.
"""

import __future__

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from ddp_operator.api.values.text import clean

from ddp_client.sdk.errors import FunctionError

MAX_BYTES: Final = 256 * 1024
"""Most bytes of a script: a quarter of a ConfigMap, and a hundred times a usual function."""
_INTERACTIVE: Final = {"get_ipython", "display", "exit", "quit"}
_KNOWN: Final = (set(dir(builtins)) - _INTERACTIVE) | {"__name__", "__file__", "__doc__"}


def script_of(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Return a script that calls the function with these keyword arguments.

    Raises:
        FunctionError: the function needs more than its own source; says what to change.

    >>> def train(rate: float) -> None:
    ...     print(torch.__version__, rate)
    >>> script_of(train, {"rate": 0.1})
    Traceback (most recent call last):
        ...
    ddp_client.sdk.errors.FunctionError: train: it uses torch from outside; import modules...
    """
    name = clean(getattr(function, "__name__", type(function).__name__), 80)
    try:
        source, call = _source(function), _call(function, arguments)
        if names := ", ".join(_names_from_outside(source)):
            raise FunctionError(
                f"it uses {clean(names, 80)} from outside; import modules and define helpers "
                "inside the function, and pass values as keyword arguments"
            )
        script = f'{source}\n\nif __name__ == "__main__":\n{call}'
        if (size := len(script.encode())) > MAX_BYTES:
            raise FunctionError(
                f"{size} bytes with its arguments, at most {MAX_BYTES}; put large data into the "
                "image or a volume, and pass its path"
            )
    except FunctionError as error:
        raise FunctionError(f"{name}: {error}") from None
    return script


def _source(function: Callable[..., object]) -> str:
    """Return the function's source as statements of a module."""
    if (
        not isinstance(function, FunctionType)
        or not function.__qualname__.rpartition("<locals>.")[2].isidentifier()
    ):
        raise FunctionError(
            "only a function written with def can be sent; a lambda, method, class, partial or "
            "callable object cannot"
        )
    code = function.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise FunctionError("an async function or a generator cannot be sent; write a plain one")
    if code.co_freevars:
        raise FunctionError(
            f"it uses {clean(', '.join(code.co_freevars), 80)} of the function around it; pass "
            "values as keyword arguments, and import modules inside the function"
        )
    try:
        source = inspect.getsource(function)
        if source[0].isspace():  # not dedented: strings over several lines stay as they are
            source = f"if True:\n{source}"
        [definition] = ast.parse(source).body
    except (OSError, TypeError):
        raise FunctionError(
            "its source cannot be found; define it in a notebook's cell or in a file"
        ) from None
    except (SyntaxError, ValueError):
        raise FunctionError(
            "its source cannot be separated from its context; write it as a def of its own, with "
            "no other statement on its lines"
        ) from None
    if isinstance(definition, ast.If):
        [definition] = definition.body
    if hasattr(function, "__wrapped__") or getattr(definition, "decorator_list", None):
        raise FunctionError(
            "a decorated function cannot be sent; send the bare function, or decorate it inside "
            "another one"
        )
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise FunctionError(
            "its source file no longer has its def where it was; if the file has changed, reload "
            "the module"
        )
    delayed = code.co_flags & __future__.annotations.compiler_flag
    return f"{'from __future__ import annotations' if delayed else ''}\n{source}"


def _names_from_outside(source: str) -> list[str]:
    tables = [symtable.symtable(source, "script", "exec")]
    known, used = set(_KNOWN), dict[str, None]()
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() != "module" and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                known.add(symbol.get_name())
            elif symbol.is_referenced():
                used[symbol.get_name()] = None
    return [name for name in used if name not in known]


def _call(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise FunctionError(
            f"{clean(error)}; pass the function's arguments by name, such as "
            "run(train, arguments={'lr': 0.1})"
        ) from None
    for key, value in arguments.items():
        try:
            if json.loads(json.dumps(value, allow_nan=False)) == value:
                continue
            why = "it has no tuples, and only string keys"
        except (TypeError, ValueError, RecursionError) as error:
            why = clean(error, 80)
        raise FunctionError(
            f"argument {key} cannot be written as JSON ({why}); pass numbers, strings, lists and "
            "dicts of them, or the path of a file"
        )
    text = json.dumps(dict(arguments))
    return f"    import json\n\n    {function.__name__}(**json.loads({text!r}))\n"
