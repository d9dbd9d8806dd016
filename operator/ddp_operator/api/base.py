"""What the models of the API have in common: how strictly they read, and values that they share."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails


def explained(problem: ErrorDetails) -> str:
    """What pydantic says of a value, as the end of a sentence that begins with its field."""
    words = problem["msg"].removeprefix("Value error, ")
    return f"{words[0].lower()}{words[1:]}"


class ApiModel(BaseModel):
    """Base of all that users write: camelCase on the wire, unknown fields and loose types ("2" for
    2) refused as the API server refuses them, immutable.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


ResourceName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
Processes = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)],
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^auto$",
            "minimum": 1,
            "maximum": 1024,
        }
    ),
]
"""Training processes in a pod."""
