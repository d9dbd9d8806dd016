"""A function of a notebook as a script that runs anywhere.

Only its text travels, and its arguments as JSON. What else it would need is found before anything
is sent, for a rank that fails with a NameError an hour later has cost an hour.
"""

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final

from ddp_operator.sdk.errors import FunctionError
from ddp_operator.views.text import clean

MAX_BYTES: Final = 256 * 1024
"""Of a script: a fourth of what a ConfigMap holds, and a hundred times what people write."""
_NOTEBOOKS_OWN: Final = {"get_ipython", "display", "exit", "quit"}
"""What IPython and the interactive Python add to the built-in names."""
_MODULES_OWN: Final = {"__name__", "__file__", "__doc__"}
_MOST_NAMES: Final = 10


def script_of(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Return a script that calls the function with these keyword arguments.

    Raises:
        FunctionError: it needs more than its own text; says what, and how to do without.

    >>> def train(rate: float) -> None:
    ...     print(torch.__version__, rate)
    >>> script_of(train, {"rate": 0.1})
    Traceback (most recent call last):
        ...
    ddp_operator.sdk.errors.FunctionError: train: it uses torch from outside, which would not go...
    """
    plain = _plain(function)
    name = plain.__name__
    source = _source(plain)
    delayed = bool(plain.__code__.co_flags & _future_annotations())
    _refuse_outside_names(name, source, delayed=delayed)
    call = _call(plain, arguments)
    script = "\n".join(
        (
            f'"""The function {name}, as a Python client has sent it."""',
            *(["from __future__ import annotations"] if delayed else []),
            f"\n{source.strip()}\n",
            f'\nif __name__ == "__main__":\n{call}',
        )
    )
    size = len(script.encode())
    if size > MAX_BYTES:
        raise FunctionError(
            f"{name}: {size} bytes with its arguments, more than {MAX_BYTES}; put what is long "
            "into the image or a volume, and pass its path"
        )
    return script


def _plain(function: Callable[..., object]) -> FunctionType:
    """Nothing but a function that was written with `def`."""
    name = clean(getattr(function, "__name__", type(function).__name__), 80)
    if (
        not isinstance(function, FunctionType)
        or "." in function.__qualname__.rpartition("<locals>.")[2]
    ):
        raise FunctionError(
            f"{name}: only a function that is written with def can be sent, no method, class, "
            "partial or object that can be called"
        )
    if name == "<lambda>":
        raise FunctionError("a lambda cannot be sent: its text is not its own; write it with def")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionError(
            f"{name}: nobody would await it or take what it yields; write a plain function"
        )
    if hasattr(function, "__wrapped__"):
        raise FunctionError(_DECORATED.format(name=name))
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars[:_MOST_NAMES])
        raise FunctionError(
            f"{name}: it is a closure over {clean(names)} of the function around it; pass values "
            "as keyword arguments, and import modules inside of it"
        )
    return function


_DECORATED: Final = (
    "{name}: its decorators would not go with it; send the bare function, or decorate it inside "
    "of another one"
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
            f"{name}: its text is not at hand; define it in a notebook's cell or in a file"
        ) from None
    except (SyntaxError, ValueError):
        raise FunctionError(
            f"{name}: its text cannot be taken out of its surroundings; write it as a def of its "
            "own, with no other statement on its lines"
        ) from None
    if not isinstance(definition, ast.FunctionDef) or definition.name != name:
        raise FunctionError(
            f"{name}: what stands where it was defined is not its def; where the file has changed "
            "meanwhile, load it anew"
        )
    if definition.decorator_list:
        raise FunctionError(_DECORATED.format(name=name))
    return source


def _refuse_outside_names(name: str, source: str, *, delayed: bool) -> None:
    """`delayed`: annotations are not looked at (`from __future__ import annotations`)."""
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
            f"{name}: it uses {clean(', '.join(missing[:_MOST_NAMES]))}{more} from outside, which "
            "would not go with it: import modules inside of the function, define its helpers "
            "there, and pass values as keyword arguments"
        )


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


class _WithoutAnnotations(ast.NodeTransformer):
    """Takes out what is not evaluated."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Of a parameter."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Of a result."""
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        """Of a variable."""
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
            f"{name}: {clean(error)}; arguments of the function go by name, as in "
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
            f"{name}: its argument {key} cannot be written as JSON ({clean(error, 200)}); pass "
            "numbers, strings, lists and dicts of them, or the path of a file"
        ) from None
    if not same:
        raise FunctionError(
            f"{name}: its argument {key} would come as something else (JSON has lists, no tuples, "
            "and only strings as keys); pass what JSON has"
        )
