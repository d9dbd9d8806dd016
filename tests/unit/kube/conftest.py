from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from ddp_operator.kube import ApiClient, Credentials, load_credentials

from tests.unit.kube.fake_api_server import FakeApiServer


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
