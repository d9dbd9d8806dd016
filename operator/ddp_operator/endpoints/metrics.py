"""The operator's metrics, for everybody or for authorized clients."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from ddp_operator.endpoints.certificate import certificate
from ddp_operator.endpoints.listening import address_of, listening
from ddp_operator.endpoints.refusals import RefusalLog
from ddp_operator.engine.metrics import CONTENT_TYPE
from ddp_operator.kube import AccessReviews, BusyError, Verdict
from ddp_operator.ports import ClusterError

PATH: Final = "/metrics"
_VERDICTS: Final = {
    Verdict.UNKNOWN: (401, "the token is not valid"),
    Verdict.FORBIDDEN: (403, f"not allowed to get {PATH}"),
}
_HEADERS: Final = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


class MetricsEndpoint:
    """Serves `text`. With `reviews`, the API server must allow the bearer of the token to `get` the
    path.
    """

    def __init__(self, reviews: AccessReviews | None = None) -> None:
        self._reviews = reviews
        self._refusals = RefusalLog()
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
            listening(
                routes,
                port,
                flag="--metrics-port",
                refusals=self._refusals,
                ssl_context=context,
            ),
        ):
            yield

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._reviews is not None:
            refusal = await self._refusal(self._reviews, request)
            if refusal is not None:
                return refusal
        return web.Response(body=self.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _refusal(self, reviews: AccessReviews, request: web.Request) -> web.Response | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        details = ""
        if scheme.lower() != "bearer":
            status, reason = 401, "a bearer token is required"
        else:
            try:
                verdict = await reviews.verdict(token.strip())
            except BusyError:
                status, reason = 503, "too many tokens are being reviewed"
            except ClusterError as error:
                status, reason = 503, "the API server does not answer"
                details = f": {error.message}"
            else:
                if verdict is Verdict.ALLOWED:
                    return None
                status, reason = _VERDICTS[verdict]
        self._refusals.add(address_of(request.remote), status, f"GET {PATH}", reason + details)
        return web.Response(status=status, text=f"{reason}\n", headers=_HEADERS.get(status))
