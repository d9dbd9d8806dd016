"""Turn a function of a notebook into a script.

Only the function's source is sent, and its arguments as JSON. Other names that it needs are found
before anything is sent, so that no rank fails with a NameError an hour later.
"""

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final

from ddp_operator.api.values.text import clean

from ddp_client.sdk.errors import FunctionError

MAX_BYTES: Final = 256 * 1024
"""Most bytes of a script: a quarter of a ConfigMap, and a hundred times a usual function."""
_NOTEBOOKS_OWN: Final = {"get_ipython", "display", "exit", "quit"}
"""Built-in names that only IPython and interactive Python have."""
_MODULES_OWN: Final = {"__name__", "__file__", "__doc__"}
_MOST_NAMES: Final = 10


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
    plain = _plain(function)
    name = plain.__name__
    source = _source(plain)
    delayed = bool(plain.__code__.co_flags & _future_annotations())
    _refuse_outside_names(name, source, delayed=delayed)
    call = _call(plain, arguments)
    script = "\n".join(
        (
            f'"""The function {name}, sent by a Python client."""',
            *(["from __future__ import annotations"] if delayed else []),
            f"\n{source.strip()}\n",
            f'\nif __name__ == "__main__":\n{call}',
        )
    )
    size = len(script.encode())
    if size > MAX_BYTES:
        raise FunctionError(
            f"{name}: {size} bytes with its arguments, at most {MAX_BYTES}; put large data into "
            "the image or a volume, and pass its path"
        )
    return script


def _plain(function: Callable[..., object]) -> FunctionType:
    """Return the function, if it is a plain one written with `def`."""
    name = clean(getattr(function, "__name__", type(function).__name__), 80)
    if (
        not isinstance(function, FunctionType)
        or "." in function.__qualname__.rpartition("<locals>.")[2]
    ):
        raise FunctionError(
            f"{name}: only a function written with def can be sent; a method, class, partial or "
            "callable object cannot"
        )
    if name == "<lambda>":
        raise FunctionError("a lambda cannot be sent: write it with def")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionError(
            f"{name}: an async function or a generator cannot be sent; write a plain one"
        )
    if hasattr(function, "__wrapped__"):
        raise FunctionError(_DECORATED.format(name=name))
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars[:_MOST_NAMES])
        raise FunctionError(
            f"{name}: it uses {clean(names)} of the function around it; pass values as keyword "
            "arguments, and import modules inside the function"
        )
    return function


_DECORATED: Final = (
    "{name}: a decorated function cannot be sent; send the bare function, or decorate it inside "
    "another one"
)


def _source(function: FunctionType) -> str:
    name = function.__name__
    try:
        source = inspect.getsource(function)
        if source[0].isspace():  # not dedented: strings over several lines stay as they are
            source = f"if True:\n{source}"
        (definition,) = ast.parse(source).body
        if isinstance(definition, ast.If):
            (definition,) = definition.body
    except (OSError, TypeError):
        raise FunctionError(
            f"{name}: its source cannot be found; define it in a notebook's cell or in a file"
        ) from None
    except (SyntaxError, ValueError):
        raise FunctionError(
            f"{name}: its source cannot be separated from its context; write it as a def of its "
            "own, with no other statement on its lines"
        ) from None
    if not isinstance(definition, ast.FunctionDef) or definition.name != name:
        raise FunctionError(
            f"{name}: its source file no longer has its def where it was; if the file has changed, "
            "reload the module"
        )
    if definition.decorator_list:
        raise FunctionError(_DECORATED.format(name=name))
    return source


def _refuse_outside_names(name: str, source: str, *, delayed: bool) -> None:
    """Refuse a function that uses names from outside.

    `delayed`: annotations are not evaluated (`from __future__ import annotations`).
    """
    tree = ast.parse(source)
    if delayed:
        tree = ast.fix_missing_locations(_WithoutAnnotations().visit(tree))
    known = (set(dir(builtins)) - _NOTEBOOKS_OWN) | _MODULES_OWN | {name}
    outside: dict[str, None] = {}
    for table in _tables(symtable.symtable(ast.unparse(tree), name, "exec")):
        for symbol in table.get_symbols():
            if table.get_type() != "module" and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                known.add(symbol.get_name())
            elif symbol.is_referenced():
                outside[symbol.get_name()] = None
    missing = [each for each in outside if each not in known]
    if missing:
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        raise FunctionError(
            f"{name}: it uses {clean(', '.join(missing[:_MOST_NAMES]))}{more} from outside; import "
            "modules and define helpers inside the function, and pass values as keyword arguments"
        )


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Remove a parameter's annotation."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Remove the annotation of the result."""
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        """Remove a variable's annotation."""
        self.generic_visit(node)
        node.annotation = ast.Constant(value=None)
        return node


def _future_annotations() -> int:
    import __future__  # noqa: PLC0415 - a name that reads like a directive at the top

    return __future__.annotations.compiler_flag


def _call(function: FunctionType, arguments: Mapping[str, Any]) -> str:
    name = function.__name__
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise FunctionError(
            f"{name}: {clean(error)}; pass the function's arguments by name, such as "
            "run(train, arguments={'lr': 0.1})"
        ) from None
    if not arguments:
        return f"    {name}()\n"
    for key, value in arguments.items():
        _check_argument(name, key, value)
    text = json.dumps(dict(arguments), ensure_ascii=True)
    return f"    import json\n\n    {name}(**json.loads({text!r}))\n"


def _check_argument(name: str, key: str, value: Any) -> None:
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise FunctionError(
            f"{name}: argument {key} cannot be written as JSON ({clean(error, 200)}); pass "
            "numbers, strings, lists and dicts of them, or the path of a file"
        ) from None
    if not same:
        raise FunctionError(
            f"{name}: argument {key} would change in JSON, which has lists but no tuples, and only "
            "string keys; pass a value that JSON can hold"
        )
