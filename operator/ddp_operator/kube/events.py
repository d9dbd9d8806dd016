"""Posts Kubernetes Events about an object. They help people, so they must never delay the work."""

import asyncio
import logging
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.resources import EVENTS
from ddp_operator.ports import ClusterError, Event, Key, Manifest

logger = logging.getLogger(__name__)

COMPONENT: Final = "ddp-operator"
# The API server's limit for core/v1 Events.
_MESSAGE_LIMIT: Final = 1024
_TIMEOUT_SECONDS: Final = 5.0
# How many of the client's writes in flight may be Events.
_IN_FLIGHT: Final = 2
# With more than this waiting, new Events are dropped: the server is overloaded.
_WAITING_LIMIT: Final = 256
# The same text about the same object is posted once in this time.
_REPEAT_SECONDS: Final = 300.0


class EventRecorder:
    """Posts Events in the background; a lost Event is only logged."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: dict[tuple[str, Event], float] = {}  # oldest first

    def record(self, about: Manifest, event: Event) -> None:
        """Post an Event about an object, unless it was posted a moment ago."""
        shown = replace(event, message=event.message[:_MESSAGE_LIMIT])
        said = (about["metadata"]["uid"], shown)
        now = self._clock()
        if now - self._said.get(said, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return
        if len(self._tasks) >= _WAITING_LIMIT:
            logger.warning("too many Events are waiting; dropping %s", event)
            return
        self._said.pop(said, None)
        self._said[said] = now
        self._forget_old(now)
        task = asyncio.create_task(self._post(about, event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_old(self, now: float) -> None:
        for oldest, at in list(islice(self._said.items(), 2)):  # forget two for each new one
            if now - at >= _REPEAT_SECONDS:
                del self._said[oldest]

    async def flush(self, *, timeout_seconds: float) -> None:
        """Wait for Events in progress, and drop those not posted in time."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_seconds)
            for task in late:
                task.cancel()

    async def _post(self, about: Manifest, event: Event) -> None:
        job = Key.of(about)
        async with self._slots:
            try:
                await self._client.request(
                    "POST",
                    EVENTS.path(namespace=job.namespace),
                    body=event_manifest(about, event, now=datetime.now(UTC)),
                    timeout_seconds=_TIMEOUT_SECONDS,
                    max_attempts=1,
                )
            except ClusterError as error:
                logger.warning("Event %s about %s is lost: %s", event.reason, job, error.message)


def event_manifest(about: Manifest, event: Event, *, now: datetime) -> Manifest:
    """Return the core/v1 Event, with a unique name."""
    metadata = about["metadata"]
    timestamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "reason": event.reason,
        "message": event.message[:_MESSAGE_LIMIT],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": platform.node(),
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
