"""The operator's metrics, for everybody or for authorized clients, with or without TLS.

The certificate is in a folder and is renewed in place, like a mounted Secret of type
kubernetes.io/tls.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web
from ddp_protocol.server.refusals import RefusalLog

from ddp_operator.endpoints.listening import ListenError, address_of, listening
from ddp_operator.engine.metrics import CONTENT_TYPE
from ddp_operator.kube import AccessReviews, BusyError, TokenStatus
from ddp_operator.ports import ClusterError

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
_VERDICTS: Final = {
    TokenStatus.UNKNOWN: (401, "the token is not valid"),
    TokenStatus.FORBIDDEN: (403, f"not allowed to get {PATH}"),
}
_HEADERS: Final = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
_LOOK_SECONDS: Final = 60.0
"""The kubelet, too, updates a changed Secret within about a minute."""


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
            _certificate(certificates) as context,
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
                if verdict is TokenStatus.ALLOWED:
                    return None
                status, reason = _VERDICTS[verdict]
        self._refusals.add(address_of(request.remote), status, f"GET {PATH}", reason + details)
        return web.Response(status=status, text=f"{reason}\n", headers=_HEADERS.get(status))


@asynccontextmanager
async def _certificate(folder: Path | None) -> AsyncIterator[ssl.SSLContext | None]:
    """Yield the TLS context with the current `tls.crt` and `tls.key`, or None without a folder.

    Raises:
        ListenError: there is no usable certificate.
    """
    if folder is None:
        yield None
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        _load(context, folder)
    except OSError as error:  # an SSLError is one, too
        raise ListenError(
            f"no usable certificate in {folder} (--metrics-cert-dir): tls.crt and tls.key: {error}"
        ) from error
    renewal = asyncio.create_task(_renew(context, folder))
    try:
        yield context
    finally:
        renewal.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewal


async def _renew(context: ssl.SSLContext, folder: Path) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            _load(context, folder)  # applies to connections from now on
        except OSError as error:
            logger.warning("keeping the old certificate of the metrics endpoint: %s", error)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
