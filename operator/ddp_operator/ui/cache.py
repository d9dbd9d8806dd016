"""What was read of a cluster, kept for all who look at it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from ddp_operator.client.cluster import NoSuchJobError, NotInstalledError
from ddp_operator.client.pacing import pause
from ddp_operator.kube import CredentialsError
from ddp_operator.ports import ClusterError
from ddp_operator.views.text import clean

T = TypeVar("T")

_TROUBLES: Final = (ClusterError, CredentialsError, NoSuchJobError, NotInstalledError)


@dataclass
class Cached(Generic[T]):
    """Something that is read when it is asked for, at most every so many seconds, and by one at a
    time: tabs and reloads cost nothing. Where it cannot be read, what was read last stays.
    """

    read: Callable[[], Awaitable[T]]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    value: T | None = None
    trouble: str = ""
    """Why it could not be read the last time; empty when it could."""
    since: datetime | None = None
    """When it could not be read for the first time since it could."""
    _next: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self) -> None:
        """Read it, unless that was done a moment ago; `trouble` says whether it could be."""
        async with self._lock:
            began = self.clock()
            if began < self._next:
                return
            try:
                self.value = await self.read()
            except _TROUBLES as error:
                self.trouble = clean(getattr(error, "message", error))
                self.since = self.since or datetime.now(UTC)
            else:
                self.trouble, self.since = "", None
            ended = self.clock()
            self._next = ended + pause(self.seconds, took=ended - began)
