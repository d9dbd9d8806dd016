import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml
from ddp_operator.kube import ApiClient, Credentials, load_credentials

from tests.unit.fast_loop import FastLoop
from tests.unit.kube.fake_api_server import FakeApiServer


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of this folder in virtual time, except those of the election's own thread."""
    has_threads = item.path.stem == "test_leadership"
    return {"loop": asyncio.SelectorEventLoop if has_threads else FastLoop}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer().running() as running:
        yield running


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "test",
                "clusters": [{"name": "fake", "cluster": {"server": server.url}}],
                "users": [{"name": "me", "user": {"token": "first"}}],
                "contexts": [
                    {
                        "name": "test",
                        "context": {"cluster": "fake", "user": "me", "namespace": "research"},
                    }
                ],
            }
        )
    )
    return path


@pytest.fixture
def credentials(kubeconfig: Path) -> Credentials:
    return load_credentials(kubeconfig=str(kubeconfig), environ={})


@pytest.fixture
async def client(credentials: Credentials) -> AsyncIterator[ApiClient]:
    async with ApiClient(credentials) as running:
        yield running
