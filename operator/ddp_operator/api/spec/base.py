"""Common parts of the spec's models: strict parsing, and shared types."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from ddp_operator.api.values.bounded import MAX_WORD, LeanModel
from ddp_operator.api.values.limits import linear
from ddp_operator.ports import Manifest

_PLAIN: Final = {
    "int_type": linear(r"-?\d+"),
    "bool_type": linear(r"true|false"),
}
"""Values that may not be quoted, by pydantic's error type."""

_MAX_PROBLEMS: Final = 20
"""Problems of one job that a message names; a status has room for about as many."""

MAX_SECONDS: Final = 10 * 365 * 24 * 3600
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]


def explained(problem: ErrorDetails) -> str:
    """Explain pydantic's error, as the end of a sentence that begins with the field."""
    value, kind = problem.get("input"), problem["type"]
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{str(value).lower()} is not text; use quotes"
    if kind in _PLAIN and isinstance(value, str) and _PLAIN[kind].fullmatch(value):
        return f"write {value[:20]} without quotes"
    if kind == "list_type" and isinstance(value, str):
        return "is one text; write a list with one text for each word"
    words = problem["msg"].removeprefix("Value error, ")
    return f"{words[0].lower()}{words[1:]}"


def in_words(path: str, problems: Sequence[ErrorDetails], manifest: Manifest) -> str:
    """Name each field by its path in the manifest, with pydantic's explanation."""
    value = manifest
    for name in path.split("."):
        value = value.get(name) or {}
    lines: list[str] = []
    for item in islice(problems, _MAX_PROBLEMS):
        text = f"{_joined(path, value, item['loc'])}: {explained(item)}"
        if item["type"] == "extra_forbidden":
            text = (
                f"{_joined(path, value, item['loc'])}: unknown field; remove it or correct its name"
            )
        if text not in lines:
            lines.append(text)
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return "; ".join(lines)


def _joined(root: str, value: Any, loc: tuple[int | str, ...]) -> str:
    """Join a pydantic location. Names of union branches are left out: they are not fields."""
    path = root
    for part in loc:
        if isinstance(value, list) and isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if part < len(value) else None
        elif isinstance(value, dict):
            path += f".{str(part)[:MAX_WORD]}"
            value = value.get(part)
    return path


class ApiModel(LeanModel):
    """Base of everything that users write: camelCase on the wire, immutable. Unknown fields and
    loose types ("2" for 2) are refused, as the API server refuses them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


ResourceName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]


def _without_quotes(value: object) -> object:
    if isinstance(value, str) and value.isdecimal():
        raise ValueError(f"write {value[:20]} without quotes")
    return value


Processes = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)],
    BeforeValidator(_without_quotes),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": 1024,
            # Not a pattern: for one, the API server would only say that the value does not match.
            "x-kubernetes-validations": [
                {
                    "rule": "type(self) == int || self == 'auto'",
                    "message": "write a number without quotes, or auto",
                }
            ],
        }
    ),
]
"""Training processes in a pod."""
