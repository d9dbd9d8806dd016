"""Reads and writes of the Lease object by a replica of the operator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ddp_operator.kube import ApiClient, Credentials, LeaseLostError
from ddp_operator.kube.election import lease
from ddp_operator.kube.election.lease import LeaderLease
from ddp_operator.kube.election.rules import Timing
from ddp_operator.ports import Key, NotLeaderError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

LEASE = Key("ns", "operator")
# Nothing expires unless a test makes it.
PATIENT = Timing(
    lease_duration=600,
    renew_deadline=500.0,
    renew_interval=0.02,
    retry_interval=0.02,
    request_timeout=60.0,
)
HASTY = Timing(
    lease_duration=600,
    renew_deadline=1.5,
    renew_interval=0.02,
    retry_interval=0.02,
    request_timeout=60.0,
)


@pytest.fixture(autouse=True)
async def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "monotonic_clock", asyncio.get_running_loop().time)


def spec(server: FakeApiServer) -> dict[str, Any]:
    stored: dict[str, Any] = server.objects["leases", *LEASE]["spec"]
    return stored


def holder(server: FakeApiServer) -> str | None:
    if ("leases", *LEASE) not in server.objects:
        return None
    return spec(server).get("holderIdentity")


def held_by(server: FakeApiServer, name: str, *, seconds: int = 600) -> None:
    manifest = {
        "metadata": {"namespace": LEASE.namespace, "name": LEASE.name, "labels": {"a": "b"}},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": seconds, "leaseTransitions": 4},
    }
    server.create("leases", manifest)


def may_act(replica: LeaderLease) -> bool:
    try:
        replica.check()
    except NotLeaderError:
        return False
    return True


@contextlib.asynccontextmanager
async def running(
    client: ApiClient, name: str = "me", timing: Timing = PATIENT, *, leads: bool = True
) -> AsyncIterator[tuple[LeaderLease, "asyncio.Task[None]"]]:
    """Run a replica. Wait until it holds the lease, unless another one does."""
    replica = LeaderLease(client, LEASE, identity=name, timing=timing)
    task = asyncio.create_task(replica.run())
    try:
        if leads:
            await asyncio.wait_for(replica.held.wait(), 60)
        yield replica, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_missing_lease_is_created_and_renewed(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(client) as (replica, _):
        replica.check()
        first = spec(server)
        assert first["holderIdentity"] == "me"
        assert first["leaseDurationSeconds"] == PATIENT.lease_duration
        assert first["leaseTransitions"] == 1
        await eventually(lambda: spec(server)["renewTime"] != first["renewTime"])
        renewed = spec(server)
        assert {**renewed, "renewTime": ""} == {**first, "renewTime": ""}


async def test_standby_leads_after_the_holder_releases_the_lease(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with (
        running(client, "first") as (first, task),
        running(client, "second", leads=False) as (second, _),
    ):
        reads = server.count("GET")
        await eventually(lambda: server.count("GET") >= reads + 3)
        assert not second.held.is_set()
        assert not may_act(second)
        task.cancel()
        await asyncio.wait({task})
        await first.release()
        assert not may_act(first)
        await asyncio.wait_for(second.held.wait(), 60)
        assert may_act(second)
        assert spec(server)["leaseTransitions"] == 2


async def test_expired_lease_is_taken_and_its_metadata_kept(
    client: ApiClient, server: FakeApiServer
) -> None:
    held_by(server, "dead", seconds=1)
    async with running(client):
        assert holder(server) == "me"
        assert spec(server)["leaseTransitions"] == 5
        assert server.objects["leases", *LEASE]["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_lost_response_does_not_lose_the_lease(
    client: ApiClient, server: FakeApiServer, method: str
) -> None:
    server.faults = [Fault(method, None, after_effect=True)]
    async with running(client) as (replica, _):
        await eventually(lambda: server.faults[0].times == 0)
        puts = server.count("PUT")
        await eventually(lambda: server.count("PUT") > puts + 2)
        assert may_act(replica)
        assert spec(server)["leaseTransitions"] == 1


async def test_deleted_lease_is_created_again_by_its_holder(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(client) as (replica, _):
        server.delete("leases", *LEASE)
        await eventually(lambda: holder(server) == "me")
        assert may_act(replica)


async def test_check_fails_after_the_deadline_even_if_no_task_has_run(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process or a suspended machine may continue later."""
    async with running(client) as (replica, _):
        replica.check()
        now = lease.monotonic_clock() + PATIENT.renew_deadline
        monkeypatch.setattr(lease, "monotonic_clock", lambda: now)
        with pytest.raises(NotLeaderError, match="does not hold the lease ns/operator"):
            replica.check()


async def test_holder_stops_when_another_one_has_the_lease(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(client) as (replica, task):
        server.update("leases", *LEASE, {"spec": {"holderIdentity": "thief"}})
        with pytest.raises(LeaseLostError, match="thief holds it now"):
            await asyncio.wait_for(task, 60)
        await replica.release()
        assert holder(server) == "thief"


async def test_release_works_after_lost_responses(client: ApiClient, server: FakeApiServer) -> None:
    server.faults = [Fault("POST", None, after_effect=True), Fault("GET", 503, {}, times=10**6)]
    async with running(client, leads=False) as (replica, task):
        await eventually(lambda: holder(server) is None and server.faults[1].times < 10**6)
        server.faults.pop()
        await eventually(lambda: holder(server) == "me")
        server.faults = [Fault("GET", 503, {}, times=10**6)]
        task.cancel()
        await asyncio.wait({task})
        server.faults = []
        await replica.release()
        assert holder(server) is None
        assert spec(server)["leaseDurationSeconds"] == 1


@pytest.mark.parametrize("is_silent", [False, True])
async def test_holder_stops_at_its_deadline_when_renewals_fail(
    client: ApiClient, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    async with running(client, timing=HASTY) as (replica, task):

        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        server.faults = [Fault("PUT", 503, {"message": "starting"}, times=10**6)]
        if is_silent:
            server.faults = []
            monkeypatch.setattr(server, "_answer", never)
        with pytest.raises(LeaseLostError, match=r"ns/operator: it could not be renewed for 1.5 s"):
            await asyncio.wait_for(task, 30)  # a request may take twice as long
        assert not may_act(replica)
        assert not replica.held.is_set()


async def test_failed_release_is_logged_and_does_not_raise(
    client: ApiClient, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(client) as (replica, task):
        task.cancel()
        await asyncio.wait({task})
        server.faults = [Fault("PUT", 503, {"message": "starting"}, times=10**6)]
        await replica.release()
    assert "cannot release the lease ns/operator; it will expire: starting" in caplog.text


async def test_release_by_a_standby_sends_no_request(
    client: ApiClient, server: FakeApiServer
) -> None:
    held_by(server, "other")
    async with running(client, leads=False) as (replica, task):
        await eventually(lambda: server.count("GET") > 0)
        task.cancel()
        await asyncio.wait({task})
        reads = server.count("GET")
        await replica.release()
        assert server.count("GET") == reads
    assert holder(server) == "other"


@pytest.mark.parametrize("attempts", [0, 1])
async def test_client_checks_before_each_attempt_of_a_write(
    credentials: Credentials, server: FakeApiServer, attempts: int
) -> None:
    def refuse() -> None:
        if len(server.requests) >= attempts:
            raise NotLeaderError("not now")

    server.faults = [Fault("POST", 503, {"message": "starting"}, times=9)]
    async with ApiClient(credentials, before_write=refuse) as client:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(NotLeaderError, match="not now"):
                await client.request(method, "/api/v1/namespaces/ns/pods", body={})
        assert client.errors == ({"503": 1} if attempts else {})
        await client.request("GET", "/api/v1/pods")
    assert [request.method for request in server.requests] == [*["POST"] * attempts, "GET"]
