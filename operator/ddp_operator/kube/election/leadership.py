"""Leader election in its own thread."""

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
    """A `LeaderLease` with its own thread, event loop and client, for use in `async with`.

    The lease is renewed however long the operator works on one job, and no renewal waits behind a
    job's hundred pods. An operator that never stops working fails its liveness probe. `credentials`
    must not be shared: they belong to one event loop.
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
        await self._in_thread(self._client.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._in_thread(self._client.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    def check(self) -> None:
        """Raise `NotLeaderError` unless this replica leads now."""
        self._lease.check()

    async def run(self) -> NoReturn:
        """Stand by until the lease is free, then hold it until cancelled.

        Raises `LeaseLostError` if the lease was held and is lost.
        """
        holding = asyncio.create_task(self._tell_when_held())
        try:
            await self._in_thread(self._lease.run())
        finally:
            holding.cancel()
            self.held.clear()
        raise AssertionError("an election ended without an error")

    async def release(self) -> None:
        """Release the lease, so that a standby takes over at once; see `LeaderLease.release`."""
        await self._in_thread(self._lease.release())

    async def _tell_when_held(self) -> None:
        await self._in_thread(self._lease.held.wait())
        self.held.set()

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work in the thread. Cancelling the caller cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
