"""What kopf asks the API server with.

Its users decide how large jobs are, and kopf counts the objects of a page, not their bytes.
"""

import json
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf

from ddp_operator.kube.client import read_at_most
from ddp_operator.kube.credentials import Connection
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.kube.resources import Resource
from ddp_operator.kube.view.listing import PageSize


def session_for(connection: Connection, watched: Resource) -> aiohttp.ClientSession:
    """Return what kopf asks the API server with, to watch one kind of object; kopf closes it."""
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
        # Not compressed: little that came would be much that is read.
        headers={**(info.as_http_headers() or {}), "Accept-Encoding": "identity"},
        proxy=info.proxy_url,
        middlewares=(_Served(watched), _WholeAnswers()),
        response_class=_Answer,
    )


class _Answer(aiohttp.ClientResponse):
    """aiohttp's, of which the body may have been read by a middleware."""

    whole: bytes | None = None

    async def json(self, **options: Any) -> Any:
        return await super().json(**options) if self.whole is None else json.loads(self.whole)


class _Served:
    """Sees to it that kopf finds the kind of object that it is to watch.

    kopf looks once, when it starts, for what the server has, and of what it does not find then it
    never hears. An API server that has just started does not know of its CRDs for a moment: that
    counts as a lost connection, after which kopf asks again.
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
            words = f"the API server does not tell of {self._watched}, or not yet"
            raise aiohttp.ClientConnectionError(words)
        return response


class _WholeAnswers:
    """Reads answers before kopf does, and asks again for what would be too large.

    One that breaks off counts as a lost connection, after which kopf asks again. By itself it does
    so only until an answer has begun: one that breaks off later, such as a list of jobs from an API
    server that dies, would end the operator. So would a list that the server has forgotten between
    two of its pages: as a payload that broke off, it is begun anew.
    """

    def __init__(self) -> None:
        self._size = PageSize()

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:  # read as it comes, and begun anew
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
                raise aiohttp.ClientConnectionError(f"the answer broke off: {error}") from error
            if is_page:
                self._size.was_read()
            return response
