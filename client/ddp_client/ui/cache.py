"""A cache of values read from a cluster, shared by all open pages."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from ddp_operator.api.values.text import clean
from ddp_operator.kube import CredentialsError
from ddp_operator.ports import ClusterError

from ddp_client.remote.cluster import NoSuchJobError, NotInstalledError
from ddp_client.remote.pacing import pause

T = TypeVar("T")

_TROUBLES: Final = (ClusterError, CredentialsError, NoSuchJobError, NotInstalledError)


@dataclass
class Cached(Generic[T]):
    """A value that is read on demand, at most every `seconds`, by one reader at a time.

    Additional tabs and reloads cost no requests. When a read fails, the last value stays.
    """

    read: Callable[[], Awaitable[T]]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    value: T | None = None
    trouble: str = ""
    """Why the last read failed; empty after a success."""
    since: datetime | None = None
    """Time of the first failure since the last success."""
    _next: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self) -> None:
        """Read the value unless it is recent; sets `trouble` when the read fails."""
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
