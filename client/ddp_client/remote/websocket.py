"""Opens WebSockets of the API server, for connections to pods."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
from ddp_operator.kube.client import ApiClient, connection_options
from ddp_operator.kube.credentials import CredentialsError
from ddp_operator.kube.errors import error_from_response
from ddp_operator.kube.responses import as_cluster_error
from ddp_operator.ports import ClusterError, UnavailableError
from yarl import URL

_SECONDS: Final = 30.0
"""Deadline of the handshake."""
_HEARTBEAT_SECONDS: Final = 30.0
"""A connection to a pod may be silent for hours. If it answers no ping for half of this, it is
dead."""
_NOT_REFUSED: Final = "Upgrade request required"
"""Response to an ordinary request where a WebSocket would have connected."""


@contextlib.asynccontextmanager
async def websocket(
    client: ApiClient, path: str, *, params: Sequence[tuple[str, str]], protocols: Sequence[str]
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a connection that speaks one of these subprotocols. A parameter may occur many times.

    Raises the `ClusterError` for the response, or `UnavailableError`.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            opened = await _connected(client, path, params, protocols)
    except aiohttp.WSServerHandshakeError as error:
        raise await _refusal(client, error.status, path, params) from error
    except (ClusterError, CredentialsError, aiohttp.ClientError, OSError) as error:
        raise as_cluster_error(error, "GET", path) from error
    async with opened:
        if opened.protocol is None:
            raise UnavailableError(f"GET {path}: the server speaks none of {protocols}")
        yield opened


async def _connected(
    client: ApiClient, path: str, params: Sequence[tuple[str, str]], protocols: Sequence[str]
) -> aiohttp.ClientWebSocketResponse:
    """Open a connection. Reload refused credentials once and try again."""
    session, credentials = client.open_session(), client.credentials
    refreshed = False
    while True:
        authorization = await credentials.authorization()
        try:
            opened: aiohttp.ClientWebSocketResponse = await session.ws_connect(
                URL(credentials.server + path, encoded=True).with_query(params),
                headers={"Authorization": authorization} if authorization else None,
                protocols=protocols,
                heartbeat=_HEARTBEAT_SECONDS,
                **connection_options(credentials),
            )
            return opened
        except aiohttp.WSServerHandshakeError as error:
            if error.status != HTTPStatus.UNAUTHORIZED or refreshed:
                raise
        await credentials.refresh(refused=authorization)
        refreshed = True


async def _refusal(
    client: ApiClient, status: int, path: str, params: Sequence[tuple[str, str]]
) -> ClusterError:
    """Return why the connection was refused. The handshake loses the response's text, so send an
    ordinary request, which is refused for the same reason with a text.
    """
    if status != HTTPStatus.UNAUTHORIZED and status < 500:
        try:
            await client.request("GET", path, params=dict(params), max_attempts=1)
        except ClusterError as refused:
            if refused.message and refused.message != _NOT_REFUSED:
                return refused
    text = f"GET {path}: no connection, HTTP {status}".encode()
    return error_from_response(status, text, retry_after=None)
