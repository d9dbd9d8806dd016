"""The Secret with the key that all replicas share."""

import asyncio
import base64
from typing import Any

import pytest
from ddp_operator.kube import ApiClient, own_secret
from ddp_operator.ports import ForbiddenError, Key, UnavailableError
from ddp_operator.process import startup

from tests.unit.kube.fake_api_server import FakeApiServer, Fault

WHERE = Key("ns", "tokens")
GOOD = base64.b64encode(b"k" * 32).decode()
EXISTS = {"reason": "AlreadyExists", "message": "it exists"}


def stored(server: FakeApiServer) -> dict[str, Any]:
    return server.objects["secrets", *WHERE]


async def test_first_replica_creates_the_key_and_others_read_it(
    client: ApiClient, server: FakeApiServer
) -> None:
    [first] = (await own_secret(client, WHERE)).values()
    assert len(first) == 32
    [(name, again)] = (await own_secret(client, WHERE)).items()
    assert again == first
    assert (server.count("POST"), server.count("GET")) == (1, 2)
    assert base64.b64decode(stored(server)["data"][name]) == first
    assert stored(server)["type"] == "Opaque"
    assert "immutable" not in stored(server), "a rotation adds a key"
    one, other = [await startup.access(client, WHERE, namespace=None) for _ in range(2)]
    assert one == other
    server.delete("secrets", *WHERE)
    server.faults = [Fault("POST", None, after_effect=True)]  # the response is lost
    [(name, second)] = (await own_secret(client, WHERE)).items()
    assert second != first
    assert base64.b64decode(stored(server)["data"][name]) == second


async def test_key_that_was_added_is_the_newest(client: ApiClient, server: FakeApiServer) -> None:
    first = await startup.access(client, WHERE, namespace=None)
    [old] = first.keys
    added = f"{int(old[:4]) + 1}{old[4:]}"
    stored(server)["data"][added] = base64.b64encode(b"x" * 64).decode()
    both = await startup.access(client, WHERE, namespace=None)
    assert both.key_for("u1", 0, ()) == added
    assert both.token_of("u1", old) == first.token_of("u1", old) != both.token_of("u1", added)


async def test_replicas_that_start_together_agree(client: ApiClient, server: FakeApiServer) -> None:
    keys = await asyncio.gather(*(own_secret(client, WHERE) for _ in range(8)))
    assert keys == [keys[0]] * 8
    [text] = stored(server)["data"].values()
    assert [base64.b64decode(text)] == [*keys[0].values()]


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
    ("content", "error"),
    [
        ({}, "has no key in data; delete it"),
        ({"data": None}, "has no key in data; delete it"),
        ({"data": {"1": GOOD, "other": "c2VjcmV0"}}, r"data\.other is no key: .* remove it"),
        ({"data": {"key": "no base64!"}}, r"data\.key is no key"),
        ({"data": {"key": base64.b64encode(b"short").decode()}}, r"data\.key is no key"),
        ({"data": {"-key": GOOD}}, r"data\.-key is no key"),
        ({"data": {64 * "k": GOOD}}, r"data\.k+ is no key"),
    ],
)
async def test_invalid_secret_is_refused_with_a_remedy(
    client: ApiClient, server: FakeApiServer, content: dict[str, Any], error: str
) -> None:
    server.create("secrets", {"metadata": {"namespace": "ns", "name": "tokens"}, **content})
    error = f"the Secret ns/tokens:? {error}"
    with pytest.raises(ValueError, match=error):
        await own_secret(client, WHERE)
    with pytest.raises(startup.StartupError, match=error):  # in one line, without a traceback
        await startup.access(client, WHERE, namespace=None)
