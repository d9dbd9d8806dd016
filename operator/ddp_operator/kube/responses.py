"""Responses of the API server: how they are read, which errors they are, and when to retry."""

import contextlib
import random
import socket
from http import HTTPStatus

import aiohttp

from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import ClusterError, ConflictError, UnavailableError

# Methods that may be sent again after a lost response. POST is one of them because the operator's
# names are deterministic: the second attempt then gets AlreadyExists.
_REPEATABLE = frozenset({"GET", "POST", "DELETE"})
# First waits after a failure without Retry-After; they double.
_BACKOFF_SECONDS = 0.1
# A server that asks for a longer wait than this is unavailable, not busy.
_LONGEST_RETRY_AFTER_SECONDS = 10.0
# The kernel notices a dead peer of a silent watch after about 15 + 3 * 5 seconds.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


async def read_at_most(max_bytes: int | None, response: aiohttp.ClientResponse) -> bytes:
    """Read a whole response, up to `max_bytes`.

    Raises:
        AnswerTooLargeError: it has more bytes; its connection is closed.
    """
    if max_bytes is None:
        return await response.read()
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > max_bytes:
            response.close()
            raise AnswerTooLargeError(f"the response has more than {max_bytes} bytes")
    return bytes(content)


def as_cluster_error(error: Exception, method: str, path: str) -> ClusterError:
    """Return the error of a request as one of the classes of `ports`."""
    if isinstance(error, ConflictError) and method == "POST":
        # A creation has no resourceVersion to conflict with. The server's own records collided (a
        # quota that many creations update at once), and nothing was created.
        return UnavailableError(error.message, status=error.status)
    if isinstance(error, ClusterError):
        return error
    return UnavailableError(f"{method} {path}: {str(error) or type(error).__name__}")


def retry_wait(
    method: str, error: Exception, failure: ClusterError, *, attempt: int
) -> float | None:
    """Return how long to wait before the next attempt, or None if there must be none."""
    jittered = _BACKOFF_SECONDS * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.5)
    if not isinstance(failure, UnavailableError):
        return None
    if failure.retry_after_seconds is not None:
        wait = failure.retry_after_seconds
        return wait + jittered if wait <= _LONGEST_RETRY_AFTER_SECONDS else None
    unsent = isinstance(error, aiohttp.ClientConnectorError)
    busy = failure.status == HTTPStatus.TOO_MANY_REQUESTS
    return jittered if unsent or busy or method in _REPEATABLE else None


def keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel notice if the other end of a silent connection is dead."""
    transport = response.connection.transport if response.connection else None
    raw = transport.get_extra_info("socket") if transport else None
    if raw is None:
        return
    with contextlib.suppress(OSError):  # not a TCP socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
