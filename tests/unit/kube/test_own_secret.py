"""The Secret with the key that all replicas share."""

import asyncio
import base64
from typing import Any

import pytest
from ddp_operator import startup
from ddp_operator.kube import ApiClient, own_secret
from ddp_operator.ports import ForbiddenError, Key, UnavailableError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault

WHERE = Key("ns", "tokens")
EXISTS = {"reason": "AlreadyExists", "message": "it exists"}


def stored(server: FakeApiServer) -> dict[str, Any]:
    return server.objects["secrets", *WHERE]


async def test_first_replica_creates_the_key_and_others_read_it(
    client: ApiClient, server: FakeApiServer
) -> None:
    first = await own_secret(client, WHERE)
    assert len(first) == 32
    assert await own_secret(client, WHERE) == first
    assert (server.count("POST"), server.count("GET")) == (1, 2)
    assert base64.b64decode(stored(server)["data"]["key"]) == first
    assert (stored(server)["type"], stored(server)["immutable"]) == ("Opaque", True)
    one, other = [await startup.access(client, WHERE, namespace=None) for _ in range(2)]
    assert one == other
    server.delete("secrets", *WHERE)
    server.faults = [Fault("POST", None, after_effect=True)]  # the response is lost
    second = await own_secret(client, WHERE)
    assert second != first
    assert base64.b64decode(stored(server)["data"]["key"]) == second


async def test_replicas_that_start_together_agree(client: ApiClient, server: FakeApiServer) -> None:
    keys = await asyncio.gather(*(own_secret(client, WHERE) for _ in range(8)))
    assert len(set(keys)) == 1
    assert base64.b64decode(stored(server)["data"]["key"]) == keys[0]


async def test_secret_that_keeps_appearing_is_unavailable(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.faults = [Fault("POST", 409, EXISTS, times=9)]
    with pytest.raises(UnavailableError, match="the Secret ns/tokens keeps appearing"):
        await own_secret(client, WHERE)


async def test_refused_read_creates_no_secret(client: ApiClient, server: FakeApiServer) -> None:
    server.faults = [Fault("GET", 403, {"message": "no"}, times=9)]
    with pytest.raises(ForbiddenError):
        await own_secret(client, WHERE)
    assert server.objects == {}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": None},
        {"data": {"other": "c2VjcmV0"}},
        {"data": {"key": "no base64!"}},
        {"data": {"key": base64.b64encode(b"short").decode()}},
    ],
)
async def test_invalid_secret_is_refused_with_a_remedy(
    client: ApiClient, server: FakeApiServer, content: dict[str, Any]
) -> None:
    server.create("secrets", {"metadata": {"namespace": "ns", "name": "tokens"}, **content})
    error = r"the Secret ns/tokens has no data\.key .* delete it"
    with pytest.raises(ValueError, match=error):
        await own_secret(client, WHERE)
    with pytest.raises(startup.StartupError, match=error):  # in one line, without a traceback
        await startup.access(client, WHERE, namespace=None)
