import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import terminal_size

import pytest
from ddp_client.cli import app
from ddp_client.cli.commands.watching import list as watch_list
from ddp_client.remote import pacing
from ddp_client.remote.cluster import Cluster
from ddp_operator.ports import UnavailableError

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import condition, training
from tests.unit.cli.screens import screens_of
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_list, "LIST_SECONDS", 0.02)
    monkeypatch.setattr(pacing, "_SHARE", 0)


@asynccontextmanager
async def watched(
    cluster: Cluster, namespace: str | None = "research", *, wide: bool = False
) -> AsyncIterator[None]:
    watching = asyncio.create_task(watch_list.watch_list(cluster, namespace, wide=wide))
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def two_more_lists(server: FakeApiServer) -> None:
    """Wait for two lists; the second one began after this call."""
    before = server.count("GET", "ddpjobs")
    await eventually(lambda: server.count("GET", "ddpjobs") >= before + 2)


@pytest.mark.parametrize("namespace", [None, "research"])
async def test_pipe_gets_a_line_for_each_change(
    cluster: Cluster,
    server: FakeApiServer,
    capsys: pytest.CaptureFixture[str],
    namespace: str | None,
) -> None:
    server.create("ddpjobs", training())
    async with watched(cluster, namespace):
        await two_more_lists(server)
        status = {"phase": "Succeeded", "conditions": [condition("Succeeded", "Completed", "well")]}
        server.update("ddpjobs", "research", NAME, {"status": status})
        await two_more_lists(server)
        server.delete("ddpjobs", "research", NAME)
        await two_more_lists(server)
    name = f"research/{NAME}" if namespace is None else NAME
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(" PodsReady")[0] for line in lines] == [
        f"{name} Running 2/2 step 500, loss 0.1235",
        f"{name} Succeeded 2/2 step 500, loss 0.1235",
        f"{name} gone",
    ]


def job(name: str) -> dict[str, object]:
    manifest = training()
    manifest["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
    return manifest


async def test_table_fits_the_terminal(
    cluster: Cluster,
    server: FakeApiServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "is_terminal", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: terminal_size((80, 6)))
    for number in range(3):
        server.create("ddpjobs", job(f"job-{number}"))
    async with watched(cluster):
        await two_more_lists(server)
        first = screens_of(capsys.readouterr().out)[-1]
        for number in range(3, 9):
            server.create("ddpjobs", job(f"job-{number}"))
        await two_more_lists(server)
    last = screens_of(capsys.readouterr().out)[-1]
    assert first.count("job-") == 3
    shown = last.splitlines()
    assert [line.split()[0] for line in shown[:4]] == ["NAME", "job-0", "job-1", "job-2"]
    assert shown[4:] == ["and 6 more"]


async def test_watch_continues_after_an_outage_of_the_server(
    cluster: Cluster, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, away, refused = cluster.jobs, False, 0

    async def sometimes(namespace: str | None) -> AsyncIterator[object]:
        nonlocal refused
        if away:
            refused += 1
            raise UnavailableError("it is away")
        async for each in jobs(namespace):
            yield each

    monkeypatch.setattr(cluster, "jobs", sometimes)
    watching = asyncio.create_task(watch_list.watch_list(cluster, "research", wide=False))
    await two_more_lists(server)
    away = True
    await eventually(lambda: refused >= 2)
    away = False
    await two_more_lists(server)
    monkeypatch.setattr(watch_list, "PATIENCE_SECONDS", 0)
    away = True
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(watching, 30)


async def test_watch_of_objects_refers_to_kubectl(ddp: Ddp) -> None:
    result = await ddp("list", "--watch", "-o", "yaml")
    assert result.exit_code == 2
    assert "kubectl get ddp -w" in result.stderr
