"""Logs of a cluster's pods, as objects."""

import asyncio
from typing import Any

import pytest
from ddp_client import AsyncClient
from ddp_client.remote import following
from ddp_client.views.refused import RefusedError

from tests.unit.cli.jobs import ESCAPES, stored, training
from tests.unit.cli.test_logs import JOB, printed, started
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(following, "SHORT_POLL_SECONDS", 0.02)


async def test_lines_of_all_ranks_are_sorted_by_time(
    client: AsyncClient, server: FakeApiServer
) -> None:
    server.create("ddpjobs", training(spec={"nprocPerNode": 2}))
    server.logs[started(server, 0)] = printed((1, "one"), (3, f"three {ESCAPES}"))
    server.logs[started(server, 1)] = printed((2, "two"))
    job = await client.job(NAME)
    lines = [line async for line in job.logs(tail=9, since_seconds=0.5)]
    assert [(line.rank, line.pod) for line in lines] == [
        (0, f"{NAME}-0-0"),
        (2, f"{NAME}-0-1"),
        (0, f"{NAME}-0-0"),
    ]
    assert [str(line) for line in lines[:2]] == ["0 | one", "2 | two"]
    assert lines[2].text.isprintable()
    assert lines[0].time < lines[1].time < lines[2].time
    asked = [request.query for request in server.requests if request.path.endswith("/log")]
    assert {(query["tailLines"], query["sinceSeconds"]) for query in asked} == {("9", "1")}
    assert [str(line) async for line in job.logs(ranks=[3])] == ["2 | two"]


@pytest.mark.parametrize("follow", [True, False])
async def test_lines_that_begin_with_their_rank(
    client: AsyncClient, server: FakeApiServer, follow: bool
) -> None:
    server.create("ddpjobs", stored("Succeeded", spec={"nprocPerNode": 2}))
    own = [(2, "[rank1]: one"), (3, "[rank0]: two")]
    server.logs[started(server, 0, ended=True)] = printed((1, "launcher"), *own)
    job = await client.job(NAME)
    shown = [str(line) async for line in job.logs(follow=follow)]
    assert shown == ["0 | launcher", "1 | one", "0 | two"]
    shown = [str(line) async for line in job.logs(follow=follow, ranks=[1])]
    assert shown == ["0 | launcher", "1 | one"]


@pytest.mark.parametrize("ranks", [[2], [-1], [0, 7]])
async def test_unknown_rank_is_refused(
    client: AsyncClient, server: FakeApiServer, ranks: list[int]
) -> None:
    server.create("ddpjobs", training())
    job = await client.job(NAME)
    with pytest.raises(RefusedError, match="the job has ranks 0 to 1 only"):
        await anext(job.logs(ranks=ranks))


async def test_unreadable_log_is_a_note(client: AsyncClient, server: FakeApiServer) -> None:
    server.create("ddpjobs", training())
    started(server, 0)
    (line,) = [line async for line in (await client.job(NAME)).logs()]
    assert line.note
    assert str(line) == "0 ! no log: the container is waiting to start"


@pytest.mark.parametrize("follow", [True, False])
async def test_connections_are_bounded(
    client: AsyncClient, server: FakeApiServer, follow: bool
) -> None:
    server.create("ddpjobs", training(spec={"replicas": 33}))
    for index in range(33):
        server.logs[started(server, index)] = b""
    job = await client.job(NAME)
    with pytest.raises(RefusedError, match="the job has 33 pods, but at most 32 logs"):
        await anext(job.logs(follow=follow))
    assert server.count("GET", "/log") == 0


async def test_logs_are_followed_through_a_restart(
    client: AsyncClient, server: FakeApiServer
) -> None:
    server.create("ddpjobs", training())
    server.logs[started(server, 0, ended=True)] = printed((1, "before"))
    shown: list[str] = []
    async with asyncio.timeout(30):
        async for line in (await client.job(NAME)).logs(follow=True):
            shown.append(str(line))
            if line.text == "before":
                server.update(*JOB, {"status": {"attempt": 1}})
                server.logs[started(server, 0, attempt=1, ended=True)] = printed((30, "after"))
            else:
                status: dict[str, Any] = stored("Succeeded")["status"]
                server.update(*JOB, {"status": status | {"attempt": 1}})
    assert shown == ["0 | before", "0 | after"]
