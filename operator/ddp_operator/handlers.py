"""kopf glue: kopf watches the DDPJobs, and its one handler hands what it sees to the engine.

Only `on.event` is used: it writes nothing to the jobs, neither finalizers nor annotations.
Deciding, retrying and remembering are the engine's.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import kopf

from ddp_operator.api.constants import GROUP, PLURAL, VERSION
from ddp_operator.engine.engine import Engine
from ddp_operator.kube import PAGE_SIZE, Connection
from ddp_operator.ports import Key

_LOGIN_SECONDS: Final = 60
"""kopf asks for credentials again after this time: bound tokens rotate, and it reads one only
once.
"""


def registry_for(
    engine: Engine, connect: Callable[[], Awaitable[Connection]]
) -> kopf.OperatorRegistry:
    """Return kopf handlers that feed an engine; `connect` gives the API server and its
    credentials.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        connection = await connect()
        return kopf.AiohttpSession(
            server=connection.server,
            default_namespace=connection.default_namespace,
            expiration=datetime.now(UTC) + timedelta(seconds=_LOGIN_SECONDS),
            aiohttp_session=session_for(connection),
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job_event(event: kopf.RawEvent, **_: Any) -> None:
        manifest = event["object"]
        metadata = manifest["metadata"]
        if event["type"] == "DELETED":
            key = Key(metadata["namespace"], metadata["name"])
            engine.job_gone(key, uid=metadata["uid"])
        else:
            engine.job_changed(manifest)

    return registry


def session_for(connection: Connection) -> aiohttp.ClientSession:
    """Return what kopf asks the API server with; kopf closes it."""
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
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        middlewares=(_whole_or_lost,),
    )


async def _whole_or_lost(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Let an answer that breaks off count as a lost connection, after which kopf asks again.

    By itself it does so only until an answer has begun: one that breaks off later, such as a list
    of jobs from an API server that dies, would end the operator. So would a list that the server
    has forgotten between two of its pages: as a payload that broke off, it is begun anew.
    """
    response = await send(request)
    if response.status == HTTPStatus.GONE and "continue" in request.url.query:
        response.release()
        raise aiohttp.ClientPayloadError("the list has expired between its pages")
    if "watch" not in request.url.query:  # those are read as they come, and begun anew
        try:
            await response.read()
        except aiohttp.ClientPayloadError as error:
            raise aiohttp.ClientConnectionError(f"the answer broke off: {error}") from error
    return response


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no posting, no scanning; the operator does without."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    # The one resource is known; that it is served is checked before kopf starts.
    chosen.scanning.disabled = True
    # Jobs in a page of a list.
    chosen.watching.chunk_size = PAGE_SIZE
    # An idle worker holds on to its job as last read; after a list there is one for each job.
    chosen.queueing.idle_timeout = 0.5
    # Tells a silent watch from a dead one.
    chosen.watching.server_timeout = 240
    # By default it ends the operator after a minute without an API server; but a replica that
    # stands by has to be there when the server is back.
    chosen.networking.error_backoffs = _UnlimitedBackoffs()
    # Nothing is ever stored on a job, so nothing needs to be compared for it.
    chosen.persistence.diffbase_storage = _NoDiffBase()
    chosen.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf")
    return chosen


class _UnlimitedBackoffs(Iterable[float]):
    """Seconds to wait between attempts, without a last one; each request begins anew."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3), itertools.repeat(5))


class _NoDiffBase(kopf.DiffBaseStorage):
    """Saves kopf the work of reducing every job to its essence, which only change handlers use."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None
