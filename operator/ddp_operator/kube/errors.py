"""From HTTP answers to the errors of `ports`.

The engine decides by error class (try again, give up, tell the user), so the translation is made in
one place and keeps the server's own words: for an invalid pod template they are all a user gets.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson

from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

# An error page of some proxy is not worth more in a status message.
_MESSAGE_LIMIT = 1024

_BY_STATUS: dict[int, type[ClusterError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: ForbiddenError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
}


_UNREADABLE = re.compile(r'\w+ in version "[^"]*" cannot be handled as a ')
"""How the API server begins to say (400) that a field is of a type which it cannot read; webhooks
begin with «admission webhook»."""


class GoneError(ClusterError):
    """The resourceVersion or continue token is too old (410): list again from the start."""


class AnswerTooLargeError(ClusterError):
    """More bytes were about to come than the caller takes; the rest was not read."""


def error_from_response(status: int, body: bytes, *, retry_after: str | None) -> ClusterError:
    """Translate an answer with an HTTP status of 300 or more and, usually, a Status object."""
    parsed = _parse(body)
    if parsed is None:
        text = " ".join(body[:_MESSAGE_LIMIT].decode(errors="replace").split())
        parsed = {"message": text or f"HTTP {status}"}
    return error_from_status(status, parsed, retry_after=retry_after)


def error_from_status(
    code: int, status: Mapping[str, Any], *, retry_after: str | None = None
) -> ClusterError:
    """Translate a Status object, be it an answer's body or the object of a watch's ERROR event."""
    message = str(status.get("message") or f"HTTP {code}")
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
        return InvalidError(message, status=code, for_good=is_unreadable or _names_fields(status))
    return _BY_STATUS.get(code, ClusterError)(message, status=code)


def _parse(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _names_fields(status: Mapping[str, Any]) -> bool:
    """Webhooks and admission policies deny with a 422 too, but of no field."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return any(isinstance(cause, Mapping) and cause.get("field") for cause in causes or ())


def _seconds(retry_after: str | None) -> float | None:
    """The header's value in seconds; its other form, an HTTP date, is not used by API servers."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
