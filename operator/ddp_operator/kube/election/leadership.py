"""Leader election beside everything else: in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn, Self, TypeVar

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.credentials import Credentials
from ddp_operator.kube.election.lease import LeaderLease, new_identity
from ddp_operator.kube.election.rules import Timing
from ddp_operator.ports import Key

T = TypeVar("T")


class Leadership:
    """A `LeaderLease` with a thread, an event loop and a client of its own, within `async with`.

    However long the operator thinks about one job, the lease is renewed meanwhile, and no renewal
    waits behind a job's hundred pods. An operator that thinks for ever does not answer its
    liveness probe. `credentials` must be no one else's: they belong to one event loop.
    """

    def __init__(
        self,
        credentials: Credentials,
        lease: Key,
        *,
        identity: str | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.key = lease
        self.held = asyncio.Event()
        """Set once this replica leads."""
        self._client = ApiClient(credentials)
        self._lease = LeaderLease(
            self._client, lease, identity=identity or new_identity(), timing=timing
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="election", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        await self._there(self._client.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._there(self._client.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    def check(self) -> None:
        """Raise `NotLeaderError` unless this replica leads at this very moment."""
        self._lease.check()

    async def run(self) -> NoReturn:
        """Stand by for as long as it takes, then hold the lease until cancelled.

        Raises `LeaseLostError` when the lease was held and is lost.
        """
        holding = asyncio.create_task(self._tell_when_held())
        try:
            await self._there(self._lease.run())
        finally:
            holding.cancel()
            self.held.clear()
        raise AssertionError("an election never ends well")

    async def release(self) -> None:
        """Give the lease up, so that a standby takes over at once; see `LeaderLease.release`."""
        await self._there(self._lease.release())

    async def _tell_when_held(self) -> None:
        await self._there(self._lease.held.wait())
        self.held.set()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do it; whoever is cancelled meanwhile cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
