"""Finds in the source what people get to read: errors, lines of logs, what commands print."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_LEVELS: Final = {"info", "warning", "error", "exception", "critical"}
_PRINTS: Final = {"echo", "secho"}
_FILLED_IN: Final = re.compile(r"%[-.\d]*[sdgf]")
GAP: Final = "…"
"""Stands for what a message is filled with when it is said."""


class Message(NamedTuple):
    """What stands in the source, and by what it is said: a logger's level, the name of an error,
    or of a function that prints.
    """

    where: str
    by: str
    text: str

    @property
    def is_printed(self) -> bool:
        return self.by in _PRINTS

    @property
    def ends_elsewhere(self) -> bool:
        """What follows is a message, too, with what to do at its end."""
        return self.text.endswith(f": {GAP}")

    @property
    def has_words(self) -> bool:
        """Others are made elsewhere, and found where they are made."""
        return re.search("[A-Za-z]", self.text) is not None


def messages(folder: Path) -> Iterator[Message]:
    """Those of all modules below a folder, with gaps for what is filled in."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            said = _said(node)
            if said is not None and (text := _text(said[1])) is not None:
                where = f"{path.relative_to(folder.parent)}:{said[1].lineno}"
                yield Message(where, said[0], _FILLED_IN.sub(GAP, text))


def _said(node: ast.AST) -> tuple[str, ast.expr] | None:
    match node:
        case ast.Raise(exc=ast.Call(func=called, args=[text, *_])):
            return ast.unparse(called).rpartition(".")[2], text
        case ast.Call(func=ast.Attribute(value=whose, attr=name), args=[text, *_]):
            logs = name in _LEVELS and "logger" in ast.unparse(whose)
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
            return re.sub(r"\{\w*\}", GAP, said) if (said := _text(text)) else None
    return None
