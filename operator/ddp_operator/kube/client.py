"""A thin asynchronous client of the Kubernetes API.

Creating hundreds of pods is the operator's hot path. So a request is one aiohttp call with a body
that is serialised once, and an error is one class of `ports`. The client knows paths and JSON, not
kinds of objects.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Self

import aiohttp
import orjson
from yarl import URL

from ddp_operator import __version__
from ddp_operator.api.values import deep_json
from ddp_operator.kube.credentials import Credentials, CredentialsError
from ddp_operator.kube.errors import error_from_response
from ddp_operator.kube.responses import (
    as_cluster_error,
    keep_alive,
    read_at_most,
    retry_wait,
)
from ddp_operator.ports import (
    ClusterError,
    Manifest,
    NotLeaderError,
    UnavailableError,
)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"

_FAILURES = (
    *(ClusterError, CredentialsError, aiohttp.ClientError, OSError),
    *(json.JSONDecodeError, RecursionError),
)
_CONNECT_TIMEOUT_SECONDS = 10.0


class ApiClient:
    """HTTP requests to one API server, as an asynchronous context manager.

    `max_writes` limits the requests in flight other than GET. `timeout_seconds` is the deadline of
    a request with all its attempts, from the moment when it may be sent. `before_write` is called
    right before each attempt at a request other than GET, and may refuse it with a `ClusterError`.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        max_connections: int = 64,
        max_writes: int = 32,
        max_attempts: int = 4,
        timeout_seconds: float = 30.0,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self.credentials = credentials
        self.errors: Counter[str] = Counter()
        """Failed attempts by status code; `none` if there was no response."""
        self._max_connections = max_connections
        self._max_attempts = max_attempts
        self._timeout_seconds = timeout_seconds
        self._before_write = before_write
        self._writes = asyncio.Semaphore(max_writes)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections),
            # Not compressed: a small response could become a large one when unpacked.
            headers={"User-Agent": f"ddp-operator/{__version__}", "Accept-Encoding": "identity"},
            # Deadlines apply to whole requests, not to aiohttp's phases.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """Send a request and return its parsed response.

        Raises the `ClusterError` for the response; `UnavailableError` also without a response, and
        `AnswerTooLargeError` if it has more than `max_bytes`.
        """
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        # Waiting for a free slot has no deadline: each holder of a slot has one.
        async with self._writes if method != "GET" else contextlib.nullcontext():
            try:
                async with asyncio.timeout(seconds) as deadline:
                    return await self._attempts(
                        method,
                        path,
                        params=params,
                        data=data,
                        headers=headers,
                        attempts=max_attempts or self._max_attempts,
                        max_bytes=max_bytes,
                        ends_at=deadline.when() or 0.0,
                    )
            except TimeoutError:  # of the deadline; those of single attempts are handled there
                self.errors["none"] += 1
                raise UnavailableError(f"{method} {path}: no answer in {seconds:g} s") from None

    async def _attempts(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        data: bytes | None,
        headers: dict[str, str],
        attempts: int,
        max_bytes: int | None,
        ends_at: float,
    ) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._send(
                    method, path, params=params, data=data, headers=headers
                ) as response:
                    content = await read_at_most(max_bytes, response)
                    return deep_json.loads(content) if content else None
            except _FAILURES as error:
                failure = self._counted(error, method, path)
                wait = retry_wait(method, error, failure, attempt=attempt)
                late = wait is not None and asyncio.get_running_loop().time() + wait >= ends_at
                if wait is None or late or attempt >= attempts:
                    raise failure from error
                await asyncio.sleep(wait)

    @contextlib.asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        params: Mapping[str, str] | None = None,
        data: bytes | None = None,
        read_timeout_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield one successful response. Reload refused credentials once and try again."""
        session, credentials = self.open_session(), self.credentials
        options: dict[str, Any] = {}
        if read_timeout_seconds is not None:
            options["timeout"] = aiohttp.ClientTimeout(
                total=None,
                sock_connect=_CONNECT_TIMEOUT_SECONDS,
                sock_read=read_timeout_seconds,
            )
        for refreshed in (False, True):
            authorization = await credentials.authorization()
            if authorization is not None:
                headers["Authorization"] = authorization
            # Read in each round: a refresh may bring other certificates.
            options |= connection_options(credentials)
            if self._before_write is not None and method != "GET":
                self._before_write()
            async with session.request(
                method,
                URL(credentials.server + path, encoded=True),
                params=params,
                data=data,
                headers=headers,
                allow_redirects=False,
                **options,
            ) as response:
                if response.status < HTTPStatus.MULTIPLE_CHOICES:
                    yield response
                    return
                content = await response.read()
                if response.status != HTTPStatus.UNAUTHORIZED or refreshed:
                    raise error_from_response(
                        response.status, content, retry_after=response.headers.get("Retry-After")
                    )
            await credentials.refresh(refused=authorization)

    def open_session(self) -> aiohttp.ClientSession:
        """Return the session of the `async with` block."""
        if self._session is None:
            raise RuntimeError("ApiClient is used outside its `async with` block")
        return self._session

    async def stream_lines(
        self, path: str, *, params: Mapping[str, str], idle_timeout_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an endless response, a watch. It ends and fails like `stream`."""
        # Not `readline`: aiohttp limits it to lines much shorter than a large object.
        rest = b""
        chunks = self.stream(path, params=params, idle_timeout_seconds=idle_timeout_seconds)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                for line in lines:
                    if line:
                        yield line

    async def stream(
        self, path: str, *, params: Mapping[str, str], idle_timeout_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield an endless response piece by piece, until the server ends it.

        Raises `UnavailableError` if the stream breaks or is silent for longer than
        `idle_timeout_seconds`, and the fitting `ClusterError` if the server refuses it.
        """
        try:
            async with self._send(
                "GET",
                path,
                params=params,
                headers={"Accept": JSON},
                read_timeout_seconds=idle_timeout_seconds,
            ) as response:
                keep_alive(response)
                async for chunk in response.content.iter_any():
                    yield chunk
        except _FAILURES as error:
            raise self._counted(error, "GET", path) from error

    def _counted(self, error: Exception, method: str, path: str) -> ClusterError:
        failure = as_cluster_error(error, method, path)
        if not isinstance(failure, NotLeaderError):  # such a request was not sent
            self.errors[str(failure.status or "none")] += 1
        return failure


def connection_options(credentials: Credentials) -> dict[str, Any]:
    """Return aiohttp's options for the proxy and the certificates of these credentials."""
    options: dict[str, Any] = {"proxy": credentials.proxy_url}
    if credentials.ssl_context is not None:
        options["ssl"] = credentials.ssl_context
        options["server_hostname"] = credentials.tls_server_name
    return options
