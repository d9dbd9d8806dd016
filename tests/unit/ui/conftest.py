from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
from ddp_client.remote.cluster import Cluster
from ddp_client.ui.access import PageAccess
from ddp_client.ui.polling import Poller
from ddp_client.ui.server import serving

from tests.unit.cli.conftest import cluster, kubeconfig, server

__all__ = ["cluster", "kubeconfig", "server"]


@dataclass
class Browser:
    """A browser that has opened the printed address."""

    access: PageAccess
    poller: Poller
    session: aiohttp.ClientSession

    async def get(self, path: str = "/") -> str:
        """Open a page."""
        async with self.session.get(f"http://127.0.0.1:{self.access.port}{path}") as answer:
            return await answer.text()


@dataclass
class Clock:
    """A clock that moves only when it is set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def poller(cluster: Cluster, clock: Clock) -> Poller:
    return Poller(cluster, home="research", everywhere=False, prices={}, clock=clock)


@pytest.fixture
async def browser(poller: Poller) -> AsyncIterator[Browser]:
    async with serving(poller, port=0) as access:
        jar = aiohttp.CookieJar(unsafe=True)  # for an IP address
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            async with session.get(access.url("/")) as answer:
                assert answer.status == 200
            yield Browser(access, poller, session)
