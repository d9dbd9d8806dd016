"""Common parts of the spec's models: strict parsing, and shared types."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from ddp_operator.api.values.bounded import LeanModel
from ddp_operator.api.values.limits import linear

_PLAIN: Final = {
    "int_type": linear(r"-?\d+"),
    "bool_type": linear(r"true|false"),
}
"""Values that may not be quoted, by pydantic's error type."""


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
