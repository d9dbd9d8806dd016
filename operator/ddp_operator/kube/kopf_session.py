"""The HTTP session that kopf uses for the API server.

Users decide how large jobs are, and kopf limits pages by the number of objects, not by bytes.
"""

import json
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf

from ddp_operator.kube.credentials import Connection
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.kube.resources import Resource
from ddp_operator.kube.responses import read_at_most
from ddp_operator.kube.view.listing import PageSize


def session_for(connection: Connection, watched: Resource) -> aiohttp.ClientSession:
    """Return a session for kopf to watch one kind of object; kopf closes it."""
    info = kopf.ConnectionInfo(
        server=connection.server,
        ca_path=connection.ca_path,
        insecure=connection.insecure,
        scheme=connection.scheme,
        token=connection.token,
        certificate_path=connection.certificate_path,
        private_key_path=connection.private_key_path,
        default_namespace=connection.default_namespace,
        proxy_url=connection.proxy_url,
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        # Not compressed: a small response could become a large one when unpacked.
        headers={**(info.as_http_headers() or {}), "Accept-Encoding": "identity"},
        proxy=info.proxy_url,
        middlewares=(_Served(watched), _WholeAnswers()),
        response_class=_Answer,
    )


class _Answer(aiohttp.ClientResponse):
    """An aiohttp response with a body that a middleware may have read."""

    whole: bytes | None = None

    async def json(self, **options: Any) -> Any:
        return await super().json(**options) if self.whole is None else json.loads(self.whole)


class _Served:
    """Makes sure that kopf finds the kind of object that it must watch.

    kopf asks once, at its start, what the server has. It never hears of a kind that was missing
    then. An API server that has just started does not know its CRDs for a moment. That counts as a
    lost connection, after which kopf asks again.
    """

    def __init__(self, watched: Resource) -> None:
        self._watched = watched

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await send(request)
        path, status = request.url.path, response.status
        found = True
        if path.endswith("/apis") and status == HTTPStatus.OK:
            groups = (await response.json()).get("groups", ())
            found = any(group["name"] == self._watched.group for group in groups)
        elif path.endswith(self._watched.root):
            found = status != HTTPStatus.NOT_FOUND
        if not found:
            response.release()
            words = f"the API server does not list {self._watched}, or not yet"
            raise aiohttp.ClientConnectionError(words)
        return response


class _WholeAnswers:
    """Reads responses before kopf does, and asks again for smaller pages if one is too large.

    A response that breaks off counts as a lost connection, after which kopf asks again. kopf itself
    retries only until a response has begun: a list of jobs that breaks off later, when an API
    server dies, would end the operator. So would a list that the server forgets between two pages.
    Both are reported as a broken payload, so that kopf lists again.
    """

    def __init__(self) -> None:
        self._size = PageSize()

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:  # read as a stream, and restarted by kopf
            return await send(request)
        is_list = "limit" in request.url.query
        while True:
            if is_list:
                request.url = request.url.update_query(limit=self._size.objects)
            response = await send(request)
            assert isinstance(response, _Answer)
            if response.status == HTTPStatus.GONE and "continue" in request.url.query:
                response.release()
                raise aiohttp.ClientPayloadError("the list has expired between its pages")
            is_page = is_list and response.status == HTTPStatus.OK
            try:
                response.whole = await read_at_most(
                    self._size.max_bytes if is_page else None, response
                )
            except AnswerTooLargeError:
                self._size.was_too_large()
                continue
            except aiohttp.ClientPayloadError as error:
                raise aiohttp.ClientConnectionError(f"the response broke off: {error}") from error
            if is_page:
                self._size.was_read()
            return response
