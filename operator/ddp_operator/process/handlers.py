"""Connects kopf to the engine: kopf watches the DDPJobs, and one handler passes each event on.

Only `on.event` is used, because it writes neither finalizers nor annotations to the jobs. The
engine decides, retries and remembers.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kopf

from ddp_operator.api.constants import GROUP, PLURAL, VERSION
from ddp_operator.engine.engine import Engine
from ddp_operator.kube import PAGE_SIZE, Connection, Resource
from ddp_operator.kube.kopf_session import session_for
from ddp_operator.ports import Key

JOBS: Final = Resource(GROUP, VERSION, PLURAL)

_LOGIN_SECONDS: Final = 60
"""kopf asks for credentials again after this time: bound tokens rotate, and kopf reads each only
once."""


def registry_for(
    engine: Engine, connect: Callable[[], Awaitable[Connection]]
) -> kopf.OperatorRegistry:
    """Return kopf handlers that feed an engine; `connect` returns the API server's address and
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
            aiohttp_session=session_for(connection, JOBS),
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job_event(event: kopf.RawEvent, **_: Any) -> None:
        manifest = event["object"]
        if event["type"] == "DELETED":
            engine.job_gone(Key.of(manifest), uid=manifest["metadata"]["uid"])
        else:
            engine.job_changed(manifest)

    return registry


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no posting, no scanning, because the operator
    needs none.
    """
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    # The only resource is known, and start-up checks that it is served.
    chosen.scanning.disabled = True
    # Jobs in a page of a list, unless they are large (kube/kopf_session).
    chosen.watching.chunk_size = PAGE_SIZE
    # An idle worker keeps its job in memory, and after a list there is one worker for each job.
    chosen.queueing.idle_timeout = 0.1
    # Distinguishes a silent watch from a dead one.
    chosen.watching.server_timeout = 240
    # By default kopf ends the operator after a minute without an API server. But a standby replica
    # must be available when the server returns.
    chosen.networking.error_backoffs = _UnlimitedBackoffs()
    # Nothing is ever stored on a job, so nothing must be compared.
    chosen.persistence.diffbase_storage = _NoDiffBase()
    chosen.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf")
    return chosen


class _UnlimitedBackoffs(Iterable[float]):
    """Seconds to wait between attempts, without end; each request starts again at the beginning."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3), itertools.repeat(5))


class _NoDiffBase(kopf.DiffBaseStorage):
    """Saves kopf the reduction of every job to its essence, which only change handlers need."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None
