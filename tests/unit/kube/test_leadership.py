"""Leader election in its own thread, while the operator is busy."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_operator.kube import Credentials, Leadership, LeaseLostError, load_credentials
from ddp_operator.kube.election.rules import Timing
from ddp_operator.ports import Key, NotLeaderError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault

LEASE = Key("ns", "operator")
TIMING = Timing(
    lease_duration=4,
    renew_deadline=2.5,
    renew_interval=0.1,
    retry_interval=0.1,
    request_timeout=1.5,
)
BUSY_SECONDS = 3.0


@contextmanager
def server_elsewhere() -> Iterator[FakeApiServer]:
    """An API server in its own thread: it answers while this one is busy."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = FakeApiServer().running()
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(60)
    finally:
        end = asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop)
        end.result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with server_elsewhere() as running:
        yield running


@pytest.fixture
def load(kubeconfig: Path) -> Callable[[], Credentials]:
    """Return new credentials for each event loop."""
    return lambda: load_credentials(kubeconfig=str(kubeconfig), environ={})


def keep_busy(seconds: float) -> None:
    """Keep the event loop, and the interpreter, busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


async def test_busy_event_loop_does_not_lose_the_lease(
    server: FakeApiServer, load: Callable[[], Credentials]
) -> None:
    async with Leadership(load(), LEASE, timing=TIMING) as leadership:
        run = asyncio.create_task(leadership.run())
        await asyncio.wait_for(leadership.held.wait(), 60)
        puts = server.count("PUT")
        keep_busy(BUSY_SECONDS)
        leadership.check()
        assert server.count("PUT") > puts + 2
        assert not run.done()
        run.cancel()
        await asyncio.wait({run})
        await leadership.release()
        assert not server.objects["leases", *LEASE]["spec"].get("holderIdentity")
        with pytest.raises(NotLeaderError):
            leadership.check()
    assert not leadership.held.is_set()


async def test_failed_renewals_end_the_run_with_an_error(
    server: FakeApiServer, load: Callable[[], Credentials]
) -> None:
    async with Leadership(load(), LEASE, timing=TIMING) as leadership:
        run = asyncio.create_task(leadership.run())
        await asyncio.wait_for(leadership.held.wait(), 60)
        server.faults = [Fault("PUT", 503, {"message": "starting"}, times=10**6)]
        with pytest.raises(LeaseLostError, match="could not be renewed"):
            await asyncio.wait_for(run, 60)
        assert not leadership.held.is_set()
        with pytest.raises(NotLeaderError):
            leadership.check()


async def test_thread_ends_although_the_election_never_ran(load: Callable[[], Credentials]) -> None:
    async with Leadership(load(), LEASE, timing=TIMING):
        assert "election" in [thread.name for thread in threading.enumerate()]
    assert "election" not in [thread.name for thread in threading.enumerate()]
