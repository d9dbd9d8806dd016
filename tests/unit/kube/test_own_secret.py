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


async def test_the_first_makes_it_and_all_others_read_it(
    client: ApiClient, server: FakeApiServer
) -> None:
    first = await own_secret(client, WHERE)
    assert len(first) == 32
    assert await own_secret(client, WHERE) == first
    assert (server.count("POST"), server.count("GET")) == (1, 2)
    assert base64.b64decode(stored(server)["data"]["key"]) == first
    assert (stored(server)["type"], stored(server)["immutable"]) == ("Opaque", True)


async def test_another_cluster_has_another(client: ApiClient, server: FakeApiServer) -> None:
    first = await own_secret(client, WHERE)
    server.delete("secrets", *WHERE)
    assert await own_secret(client, WHERE) != first


async def test_replicas_that_start_at_once_agree(client: ApiClient, server: FakeApiServer) -> None:
    found = await asyncio.gather(*(own_secret(client, WHERE) for _ in range(8)))
    assert len(set(found)) == 1
    assert base64.b64decode(stored(server)["data"]["key"]) == found[0]


async def test_an_answer_that_is_lost_changes_nothing(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.faults = [Fault("POST", None, after_effect=True)]
    found = await own_secret(client, WHERE)
    assert base64.b64decode(stored(server)["data"]["key"]) == found


async def test_one_that_comes_and_goes_is_given_up(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.faults = [Fault("POST", 409, EXISTS, times=9)]
    with pytest.raises(UnavailableError, match="the Secret ns/tokens keeps appearing"):
        await own_secret(client, WHERE)


async def test_a_refusal_is_no_reason_to_make_another(
    client: ApiClient, server: FakeApiServer
) -> None:
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
async def test_what_is_no_secret_is_refused_with_the_remedy(
    client: ApiClient, server: FakeApiServer, content: dict[str, Any]
) -> None:
    server.create("secrets", {"metadata": {"namespace": "ns", "name": "tokens"}, **content})
    said = r"the Secret ns/tokens has no data\.key .* delete it"
    with pytest.raises(ValueError, match=said):
        await own_secret(client, WHERE)
    with pytest.raises(startup.StartupError, match=said):  # in one line, without a traceback
        await startup.access(client, WHERE, namespace=None)


async def test_all_replicas_give_a_job_the_same_token(client: ApiClient) -> None:
    one, other = [await startup.access(client, WHERE, namespace=None) for _ in range(2)]
    assert one == other
