"""Converts HTTP responses to the errors of `ports`.

The engine decides by error class (retry, stop, tell the user), so one place makes the classes. It
keeps the server's own words: for an invalid pod template they are all that a user gets.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from ddp_operator.api.values.limits import MAX_REFUSAL, linear
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceEndsError,
    NotFoundError,
    UnavailableError,
)

# A status message needs no more of a proxy's error page.
_MESSAGE_LIMIT = 1024
# Nor of an API server's message, which may quote a user's values.
_BODY_LIMIT = 1024 * 1024

_BY_STATUS: dict[int, type[ClusterError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: ForbiddenError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
}


_UNREADABLE = linear(r'\w+ in version "[^"]*" cannot be handled as a ')
"""Start of the API server's message (400) that it cannot read a field's type. Messages of webhooks
begin with «admission webhook»."""


_ENDS = "NamespaceTerminating"
"""The API server's cause of refusals in a namespace that is being deleted."""


class GoneError(ClusterError):
    """The resourceVersion or continue token is too old (410): list again."""


class AnswerTooLargeError(ClusterError):
    """The response has more bytes than the caller accepts; the rest was not read."""


def error_from_response(status: int, body: bytes, *, retry_after: str | None) -> ClusterError:
    """Convert a response with an HTTP status of 300 or more and, usually, a Status object."""
    parsed = _parse(body)
    if parsed is None:
        text = " ".join(body[:_MESSAGE_LIMIT].decode(errors="replace").split())
        parsed = {"message": text or f"HTTP {status}"}
    return error_from_status(status, parsed, retry_after=retry_after)


def error_from_status(
    code: int, status: Mapping[str, Any], *, retry_after: str | None = None
) -> ClusterError:
    """Convert a Status object: the body of a response, or the object of a watch's ERROR event."""
    message = str(status.get("message") or f"HTTP {code}")[:MAX_REFUSAL]
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        seconds = _seconds(retry_after)
        if seconds is None:
            details = status.get("details")
            named = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
            seconds = float(named) if isinstance(named, int) and named > 0 else None
        return UnavailableError(message, status=code, retry_after_seconds=seconds)
    if code == HTTPStatus.CONFLICT and status.get("reason") == "AlreadyExists":
        return AlreadyExistsError(message, status=code)
    if code == HTTPStatus.GONE:
        return GoneError(message, status=code)
    if _BY_STATUS.get(code) is InvalidError:
        is_unreadable = code == HTTPStatus.BAD_REQUEST and _UNREADABLE.match(message) is not None
        return InvalidError(message, status=code, permanent=is_unreadable or _names_fields(status))
    if code == HTTPStatus.FORBIDDEN and any(c.get("reason") == _ENDS for c in _causes(status)):
        return NamespaceEndsError(message, status=code)
    return _BY_STATUS.get(code, ClusterError)(message, status=code)


def _parse(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = orjson.loads(body) if len(body) <= _BODY_LIMIT else None
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _names_fields(status: Mapping[str, Any]) -> bool:
    """Return whether the error names fields. Webhooks and admission policies also deny with 422,
    but name none.
    """
    return any(cause.get("field") for cause in _causes(status))


def _causes(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return (cause for cause in causes or () if isinstance(cause, Mapping))


def _seconds(retry_after: str | None) -> float | None:
    """Return the header's value in seconds. API servers do not use its other form, an HTTP date."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
