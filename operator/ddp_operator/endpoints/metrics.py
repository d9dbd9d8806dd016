"""The operator's metrics, for everybody or for authorized clients."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from ddp_operator.endpoints.certificate import certificate
from ddp_operator.endpoints.listening import listening
from ddp_operator.engine.metrics import CONTENT_TYPE
from ddp_operator.kube import AccessReviews, BusyError, Verdict
from ddp_operator.ports import ClusterError

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
_LOG_INTERVAL_SECONDS: Final = 60.0
"""Problems with reviews are logged once in this time, however many requests come."""


class MetricsEndpoint:
    """Serves `text`. With `reviews`, the API server must allow the bearer of the token to `get` the
    path.
    """

    def __init__(self, reviews: AccessReviews | None = None) -> None:
        self._reviews = reviews
        self._logged_at = -_LOG_INTERVAL_SECONDS
        self.text: Callable[[], str] = lambda: ""
        """Returns the metrics in Prometheus' text format."""

    @asynccontextmanager
    async def serving(self, port: int, *, certificates: Path | None = None) -> AsyncIterator[None]:
        """Serve on a port during the block; port 0 turns it off. With a folder that has a
        certificate, serve TLS.

        Raises `ListenError` if the port or the certificate is not available.
        """
        routes = [web.get(PATH, self._metrics)]
        async with (
            certificate(certificates) as context,
            listening(routes, port, flag="--metrics-port", ssl_context=context),
        ):
            yield

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._reviews is not None:
            refusal = await self._refusal(self._reviews, request.headers.get("Authorization", ""))
            if refusal is not None:
                return refusal
        return web.Response(body=self.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _refusal(self, reviews: AccessReviews, authorization: str) -> web.Response | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return _unauthorized("a bearer token is required")
        try:
            verdict = await reviews.verdict(token.strip())
        except BusyError:
            return _unavailable("too many tokens are being reviewed")
        except ClusterError as error:
            if time.monotonic() - self._logged_at >= _LOG_INTERVAL_SECONDS:
                self._logged_at = time.monotonic()
                logger.warning("cannot review a request for metrics: %s", error.message)
            return _unavailable("the API server does not answer")
        if verdict is Verdict.UNKNOWN:
            return _unauthorized("the token is not valid")
        if verdict is Verdict.FORBIDDEN:
            return web.Response(status=403, text=f"not allowed to get {PATH}\n")
        return None


def _unauthorized(reason: str) -> web.Response:
    return web.Response(status=401, text=f"{reason}\n", headers={"WWW-Authenticate": "Bearer"})


def _unavailable(reason: str) -> web.Response:
    return web.Response(status=503, text=f"{reason}\n", headers={"Retry-After": "1"})
