"""A cluster as a place for jobs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Self

import orjson

from ddp_operator.client.cluster import JOBS, Cluster, NoSuchJobError
from ddp_operator.client.evidence import gather
from ddp_operator.client.submission import submit
from ddp_operator.kube import ApiClient, Credentials
from ddp_operator.ports import (
    ClusterError,
    ForbiddenError,
    Key,
    Manifest,
    UnavailableError,
)
from ddp_operator.report import Facts
from ddp_operator.report.history import History
from ddp_operator.sdk.places.place import PATIENCE_SECONDS

_TIMEOUT_SECONDS: Final = 15.0
_WATCH_SECONDS: Final = 240
_SLACK_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 2.0
"""Between two looks where watches are not allowed, and after a watch that broke."""


class KubernetesPlace(Cluster):
    """Implements `Place` on an API server."""

    def __init__(self, credentials: Credentials, namespace: str) -> None:
        super().__init__(ApiClient(credentials, timeout_seconds=_TIMEOUT_SECONDS))
        self._namespace = namespace

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.client.__aexit__(kind, error, traceback)

    @property
    def namespace(self) -> str:
        """See `Place`."""
        return self._namespace

    async def create(self, job: Manifest, scripts: Manifest | None) -> Manifest:
        """See `Place`."""
        return await submit(self, job["metadata"]["namespace"], job, scripts)

    async def changes(self, key: Key) -> AsyncGenerator[Manifest | None, None]:
        """See `Place`: a watch, or a look every two seconds where watches are not allowed."""
        clock = asyncio.get_running_loop().time
        reached, may_watch = clock(), True
        while True:
            try:
                job = await self.job(key)
            except NoSuchJobError:
                yield None
                return
            except UnavailableError:
                if clock() - reached > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(_POLL_SECONDS)
                continue
            reached = clock()
            yield job
            if may_watch:
                try:
                    async with contextlib.aclosing(self._watched(key, job)) as watched:
                        async for seen in watched:
                            yield seen
                            if seen is None:
                                return
                except ForbiddenError:
                    may_watch = False
                except ClusterError:
                    pass  # a look tells what is the matter
            await asyncio.sleep(_POLL_SECONDS)

    async def facts(self, key: Key, history: History | None) -> Facts:
        """See `Place`."""
        return await gather(self, key, history=history)

    async def _watched(self, key: Key, job: Manifest) -> AsyncGenerator[Manifest | None, None]:
        lines = self.client.stream_lines(
            JOBS.path(namespace=key.namespace),
            params={
                "watch": "true",
                "fieldSelector": f"metadata.name={key.name}",
                "resourceVersion": job["metadata"]["resourceVersion"],
                "timeoutSeconds": str(_WATCH_SECONDS),
            },
            idle_timeout_seconds=_WATCH_SECONDS + _SLACK_SECONDS,
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                event = orjson.loads(line)
                seen: Manifest = event["object"]
                if event["type"] == "ERROR":
                    return
                if seen["metadata"].get("name") == key.name and event["type"] != "BOOKMARK":
                    yield None if event["type"] == "DELETED" else seen
