"""Find every reason in the operator's source. The search follows the arguments of Events,
conditions and recorded failures back to the literal text.
"""

import ast
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_CLASSES: Final = {"Event": 0, "Condition": None, "Failure": None}
"""Classes with a reason, and its place among the arguments if it may be positional."""
_READ: Final = {"reason", "waiting", "disruption"}
"""Attributes with a word that was read from a pod, or from a record of the operator."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnknownReasonError(Exception):
    """A word is made in a way that this module does not understand."""


class Source:
    """Modules, and the words that become reasons in them."""

    def __init__(
        self, texts: Mapping[str, str], constants: Mapping[str, Any] | None = None
    ) -> None:
        self._constants = constants
        self._module_of: dict[ast.AST, str] = {}
        self._inside: dict[ast.AST, Function] = {}
        self._functions: dict[str, list[Function]] = {}
        self._calls: list[ast.Call] = []
        self._busy: set[tuple[ast.AST, int | None]] = set()
        for module, text in texts.items():
            self._read(module, ast.parse(text), None)

    def _read(self, module: str, node: ast.AST, inside: Function | None) -> None:
        self._module_of[node] = module
        if inside is not None:
            self._inside[node] = inside
        if isinstance(node, Function):
            self._functions.setdefault(node.name, []).append(node)
            inside = node
        if isinstance(node, ast.Call):
            self._calls.append(node)
        for child in ast.iter_child_nodes(node):
            self._read(module, child, inside)

    def reasons(self) -> set[str]:
        """Return all reasons, except those of the cluster that are passed on."""
        found: set[str] = set()
        for call in self._calls:
            name = _called(call)
            if name in _CLASSES and (given := _argument(call, "reason", _CLASSES[name])):
                found |= self._words(given)
        return found - {""}

    def _words(self, node: ast.expr, element: int | None = None) -> set[str]:
        """Return the possible texts of an expression; for a tuple, of that element."""
        if (node, element) in self._busy:
            return set()
        self._busy.add((node, element))
        try:
            return self._of(node, element)
        finally:
            self._busy.discard((node, element))

    def _of(self, node: ast.expr, element: int | None) -> set[str]:
        parts: list[tuple[ast.expr, int | None]]
        match node:
            case ast.Constant(value=str(word)):
                return {word}
            case ast.Name():
                return self._of_name(node, element)
            case ast.Attribute(attr=name) if name in _READ:
                parts = []
            case ast.Attribute(value=ast.Name()):
                return {self._constant(node)}
            case ast.IfExp():
                parts = [(node.body, element), (node.orelse, element)]
            case ast.BoolOp():
                parts = [(each, element) for each in node.values]
            case ast.Tuple() if element is not None:
                parts = [(node.elts[element], None)]
            case ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="get")):
                parts = [(each, None) for each in (*table.values, node.args[1])]
            case ast.Call() if _called(node) in self._functions:
                functions = self._functions[_called(node)]
                ends = [end for each in functions for end in self._own(each, ast.Return)]
                parts = [(end.value, element) for end in ends if end.value is not None]
            case _:
                raise self._unknown(node)
        return set[str]().union(*(self._words(*part) for part in parts))

    def _of_name(self, node: ast.Name, element: int | None) -> set[str]:
        function = self._inside.get(node)
        if function is None:
            return {self._constant(node)}
        if node.id in (names := _parameters(function)):
            return self._given(function, node.id, names)
        found: list[set[str]] = []
        for each in self._own(function, ast.Assign):
            for at in _places(each.targets[0], node.id):
                if at is not None and isinstance(each.value, ast.Tuple):
                    found.append(self._words(each.value.elts[at], element))
                else:
                    found.append(self._words(each.value, element if at is None else at))
        return set[str]().union(*found) if found else {self._constant(node)}

    def _given(self, function: Function, name: str, names: Sequence[str]) -> set[str]:
        """Return the arguments of all callers for a parameter, and its default."""
        found: set[str] = set()
        arguments = function.args
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if parameter.arg == name and default is not None:
                found |= self._words(default)
        at = names.index(name) if name not in {one.arg for one in arguments.kwonlyargs} else None
        for call in self._calls:
            if _called(call) != function.name:
                continue
            for place, given in enumerate(call.args):
                if at is not None and isinstance(given, ast.Starred) and place <= at:
                    found |= self._words(given.value, at - place)
                    break
            else:
                if value := _argument(call, name, at):
                    found |= self._words(value)
        return found

    def _own(self, function: Function, kind: type[Any]) -> Iterator[Any]:
        return (
            node
            for node in ast.walk(function)
            if isinstance(node, kind) and self._inside.get(node) is function
        )

    def _constant(self, node: ast.Name | ast.Attribute) -> str:
        constants = self._constants
        if constants is None:
            constants = vars(importlib.import_module(self._module_of[node]))
        value: Any = constants
        for name in ast.unparse(node).split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if not isinstance(value, str):
            raise self._unknown(node)
        return value

    def _unknown(self, node: ast.expr) -> UnknownReasonError:
        where = f"{self._module_of[node]}, line {node.lineno}"
        return UnknownReasonError(f"{where}: cannot find the text of {ast.unparse(node)}")


def operator_source(folder: Path) -> Source:
    """Return the source of the modules that decide about jobs."""
    texts = {}
    for path in (p for part in ("job", "engine") for p in (folder / part).rglob("*.py")):
        inner = path.relative_to(folder.parent).with_suffix("")
        texts[".".join(inner.parts).removesuffix(".__init__")] = path.read_text()
    return Source(texts)


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _argument(call: ast.Call, name: str, at: int | None) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[at] if at is not None and at < len(call.args) else None


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _places(target: ast.expr, name: str) -> Iterator[int | None]:
    """Yield the places of a name in an assignment target; None: the whole target."""
    if isinstance(target, ast.Name) and target.id == name:
        yield None
    elif isinstance(target, ast.Tuple):
        for at, each in enumerate(target.elts):
            if isinstance(each, ast.Name) and each.id == name:
                yield at
