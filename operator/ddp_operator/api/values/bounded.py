"""Types of a stored status. They limit everything that is read or written.

A user or another release may have written the status. It must not make a job fail, and nothing may
become too large.
"""

import contextlib
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel


def format_time(moment: datetime) -> str:
    """Format a time as Kubernetes' `metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Range in which the operator can add any of its durations to a time."""


def _in_range(moment: datetime) -> datetime:
    return min(max(moment.replace(tzinfo=moment.tzinfo or UTC), _FIRST), _LAST)


Time = Annotated[
    datetime,
    AfterValidator(_in_range),
    PlainSerializer(format_time, return_type=str, when_used="json"),
]


def read_time(text: str | None) -> datetime | None:
    """Read a time as Kubernetes writes it, or return None if it cannot be read."""
    try:
        return _in_range(datetime.fromisoformat(text)) if text else None
    except ValueError:
        return None


_MAX_DIGITS: Final = 11
"""Digits of a time after the year 5000 in seconds since 1970."""


def read_epoch(text: str | None) -> datetime | None:
    """Read a time in whole seconds since 1970, or return None if it cannot be read."""
    if not text or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    return _in_range(datetime.fromtimestamp(int(text), UTC))


def _between(value: int, *, least: int, most: int) -> int:
    return min(max(value, least), most)


_EXACT: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""
_MOST: Final = 2**31 - 1
"""68 years in seconds, or the restarts of a job that fails every second for as long."""

Count = Annotated[int, AfterValidator(partial(_between, least=0, most=_MOST))]
Step = Annotated[int, AfterValidator(partial(_between, least=0, most=_EXACT))]
Number = Annotated[int, AfterValidator(partial(_between, least=-_EXACT, most=_EXACT))]


def wire_name(name: str) -> str:
    """Return the name under which a field is stored."""
    return to_camel(name.rstrip("_"))  # `class_`, because `class` is a keyword in Python


_NO_FIELDS: Final[set[str]] = set()


class LeanModel(BaseModel):
    """Base of all models of a job. It drops pydantic's record of the given fields: nobody reads it,
    and it takes 5 kB for each job.
    """

    def model_post_init(self, context: Any) -> None:  # noqa: ARG002 - pydantic calls it
        """Drop the record; copies start with their own."""
        object.__setattr__(self, "__pydantic_fields_set__", _NO_FIELDS)


class StatusModel(LeanModel):
    """Base of everything that the operator writes: camelCase; unknown fields are ignored.

    Values that are too long or too large are cut, both when read and before written
    (`DDPJobStatus.bounded`). Values of another release that cannot be read are left out, except
    counters: no job may fail because of one word.
    """

    model_config = ConfigDict(
        alias_generator=wire_name,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        revalidate_instances="always",
    )

    def updated(self, **fields: Any) -> Self:
        """Return a copy with these fields changed. The values are not validated."""
        return self.model_copy(update=fields)


_TRIED: Final = 4
"""Items of a list that are tried for each one that may be kept."""


def _or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


def first(limit: int) -> BeforeValidator:
    """Keep the first characters of a text."""
    return BeforeValidator(lambda text: text[:limit] if isinstance(text, str) else text)


def first_items(limit: int) -> BeforeValidator:
    """Keep the first items of a map."""
    return BeforeValidator(
        lambda items: dict(islice(items.items(), limit)) if isinstance(items, dict) else items
    )


def last_items(limit: int) -> BeforeValidator:
    """Keep the last items of a list."""
    return BeforeValidator(
        lambda items: items[-limit:] if isinstance(items, list | tuple) else items
    )


def readable(limit: int) -> WrapValidator:
    """Keep the newest readable items of a list, within a limited search."""

    def kept(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        found: list[Any] = []
        for item in value[-_TRIED * limit :] if isinstance(value, list | tuple) else ():
            with contextlib.suppress(ValidationError):
                found.extend(handler([item]))
        return tuple(found[-limit:])

    return WrapValidator(kept)


OR_NONE: Final = WrapValidator(_or_none)
"""Left out if it cannot be read."""
OR_UNKNOWN: Final = AfterValidator(lambda text: text or "Unknown")
"""Empty texts become "Unknown", because the schema requires a text."""

MAX_WORD: Final = 256
Word = Annotated[str, Field(max_length=MAX_WORD), first(MAX_WORD)]
Reason = Annotated[Word, OR_UNKNOWN]
Name = Annotated[str, Field(max_length=253), first(253)]
"""As long as a DNS subdomain may be (RFC 1123)."""
Line = Annotated[str, Field(max_length=1024), first(1024)]
Sentence = Annotated[str, Field(max_length=4096), first(4096)]
