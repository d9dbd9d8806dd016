"""Finds messages in source code: errors, log lines, and printed lines."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_LEVELS: Final = {"info", "warning", "error", "exception", "critical"}
_PRINTS: Final = {"echo", "secho"}
_FILLED_IN: Final = re.compile(r"%[-.\d]*[sdgf]")
GAP: Final = "…"
"""Placeholder for values that are known only at run time."""


class Message(NamedTuple):
    """A message in the source. `by` is a log level, or the name of an error or of a function that
    prints.
    """

    where: str
    by: str
    text: str

    @property
    def is_printed(self) -> bool:
        return self.by in _PRINTS

    @property
    def ends_elsewhere(self) -> bool:
        """Return whether another message follows, with the remedy at its end."""
        return self.text.endswith(f": {GAP}")

    @property
    def has_words(self) -> bool:
        """Return whether the text is in this place, and not only passed on."""
        return re.search("[A-Za-z]", self.text) is not None


def messages(folder: Path) -> Iterator[Message]:
    """Yield the messages of all modules in a folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = _call(node)
            if call is not None and (text := _text(call[1])) is not None:
                where = f"{path.relative_to(folder.parent)}:{call[1].lineno}"
                yield Message(where, call[0], _FILLED_IN.sub(GAP, text))


def _call(node: ast.AST) -> tuple[str, ast.expr] | None:
    match node:
        case ast.Raise(exc=ast.Call(func=called, args=[text, *_])):
            return ast.unparse(called).rpartition(".")[2], text
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[text, *_]):
            logs = name in _LEVELS and "logger" in ast.unparse(owner)
            return (name, text) if logs or name in _PRINTS else None
    return None


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.FormattedValue():
            return GAP
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or GAP) + (_text(right) or GAP)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):
            return re.sub(r"\{\w*\}", GAP, template) if (template := _text(text)) else None
    return None
