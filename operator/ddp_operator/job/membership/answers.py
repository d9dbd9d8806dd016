"""Answers of programs in a job's pods. They are untrusted: each field is validated first."""

import json
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddp_operator.api.spec.base import explained

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""Up to the largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""
YEARS: Final = range(1970, 9999)
"""Years that every RFC 3339 writer spells with four digits in any time zone."""


class InvalidAnswerError(ValueError):
    """An answer is invalid; the text names the field."""


class Answer(BaseModel):
    """Base class of answers."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, strict=True
    )

    @classmethod
    def read(cls, content: bytes | str) -> Self:
        """Parse an answer.

        Raises:
            InvalidAnswerError: it is not JSON, or a field is missing or wrong.
        """
        try:
            # Python writes a diverged loss as `NaN`, which is not JSON.
            return cls.model_validate(json.loads(content, parse_constant=lambda _: None))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the answer"
            raise InvalidAnswerError(f"{where}: {explained(first)}") from None
        except (ValueError, RecursionError):
            raise InvalidAnswerError("the answer is not JSON") from None
