"""Answers of programs in a job's pods. They are untrusted: each has a limit of bytes, and each
field is validated first. Fields with several values limit their number.
"""

import json
from typing import Annotated, ClassVar, Final, Self

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
    MAX_BYTES: ClassVar[int] = 64 * 1024
    """JSON takes up to 25 times as much memory while it is read."""

    @classmethod
    def read(cls, content: bytes | str) -> Self:
        """Parse an answer.

        Raises:
            InvalidAnswerError: it is too large or not JSON, or a field is missing or wrong.
        """
        if len(content) > cls.MAX_BYTES:
            raise InvalidAnswerError(f"the answer has more than {cls.MAX_BYTES} bytes")
        try:
            # Python writes a diverged loss as `NaN`, which is not JSON.
            return cls.model_validate(json.loads(content, parse_constant=lambda _: None))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the answer"
            raise InvalidAnswerError(f"{where}: {explained(first)}") from None
        except (ValueError, RecursionError):
            raise InvalidAnswerError("the answer is not JSON") from None
