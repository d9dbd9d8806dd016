import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ddp_operator.kube import MAX_PAGE_BYTES, ApiClient, Credentials, Reflector
from ddp_operator.ports import Key, MalformedError, UnavailableError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

JOB = Key("ns", "job")
OTHER = Key("ns", "other")


def pod(name: str, *, job: str = "job", managed: bool = True, **extra: Any) -> dict[str, Any]:
    labels = {"job": job, **({"managed": "yes"} if managed else {})}
    return {"metadata": {"namespace": "ns", "name": name, "labels": labels}, **extra}


def project(manifest: Any) -> tuple[str, str]:
    """Return a pod's name and its phase, or that it is terminating."""
    if manifest.get("status") == "malformed":
        raise TypeError("malformed")
    if manifest.get("status") == "forged":
        raise MalformedError("its label is wrong")
    if manifest["metadata"].get("deletionTimestamp"):
        return manifest["metadata"]["name"], "Terminating"
    return manifest["metadata"]["name"], manifest.get("status", {}).get("phase", "")


def group(manifest: Any) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["labels"]["job"])


class Running:
    """A running reflector, and the changes that it reports."""

    def __init__(self, client: ApiClient, **options: Any) -> None:
        self.changes: Counter[Key] = Counter()
        options = {"first_backoff_seconds": 0.01, "last_backoff_seconds": 0.05, **options}
        self.reflector = Reflector(
            client,
            "/api/v1/pods",
            label_selector="managed=yes",
            project=project,
            group=group,
            on_change=self.on_change,
            **options,
        )

    def on_change(self, changed: Key) -> None:
        self.changes[changed] += 1

    def pods(self, job: Key = JOB) -> dict[str, str]:
        return dict(sorted(self.reflector.group_members(job)))

    async def shows(self, expected: dict[str, str], job: Key = JOB) -> None:
        await eventually(lambda: self.pods(job) == expected, describe=lambda: self.pods(job))


@contextlib.asynccontextmanager
async def running(
    client: ApiClient, *, server: FakeApiServer | None = None, **options: Any
) -> AsyncIterator[Running]:
    """Run a reflector. With `server`, wait until its watch is open."""
    started = Running(client, **options)
    task = asyncio.create_task(started.reflector.run())
    try:
        await started.reflector.wait_synced(timeout_seconds=30)
        if server is not None:
            await eventually(lambda: server.open_watches == 1)
        yield started
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_objects_are_listed_and_changes_are_watched(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.create("pods", pod("a"))
    server.create("pods", pod("b", job="other"))
    server.create("pods", pod("foreign", managed=False))
    async with running(client) as view:
        assert (view.pods(), view.pods(OTHER)) == ({"a": ""}, {"b": ""})
        assert len(view.reflector) == 2
        assert view.changes == {JOB: 1, OTHER: 1}
        server.create("pods", pod("c"))
        await view.shows({"a": "", "c": ""})
        server.update("pods", "ns", "a", {"status": {"phase": "Running"}})
        await view.shows({"a": "Running", "c": ""})
        server.delete("pods", "ns", "a")
        await view.shows({"c": ""})
        assert view.changes == {JOB: 4, OTHER: 1}


async def test_large_list_comes_in_pages(client: ApiClient, server: FakeApiServer) -> None:
    for index in range(25):
        server.create("pods", pod(f"p{index:02}"))
    async with running(client, page_size=10) as view:
        assert len(view.pods()) == 25
    assert server.count("GET", "/pods") == 3
    assert [r.query.get("limit") for r in server.requests if "watch" not in r.query] == ["10"] * 3


async def test_page_of_large_objects_has_few(client: ApiClient, server: FakeApiServer) -> None:
    for index in range(12):
        server.create("pods", pod(f"p{index:02}", spec="x" * (MAX_PAGE_BYTES // 3)))
    async with running(client, page_size=10) as view:
        assert len(view.pods()) == 12
    lists = [request.query for request in server.requests if "watch" not in request.query]
    limits = {query.get("continue"): int(query["limit"]) for query in lists}  # the last attempts
    assert len(lists) > len(limits)
    begin = 0
    for limit in limits.values():
        assert min(limit, 12 - begin) <= 2
        begin += limit
    assert begin >= 12


async def test_list_that_expires_between_pages_starts_again(
    client: ApiClient, server: FakeApiServer
) -> None:
    for index in range(3):
        server.create("pods", pod(f"p{index}"))

    def delay(page: int) -> None:
        if page == 0:
            server.before_page = lambda _page: None
            server.create("pods", pod("late"))
            server.compact()

    server.before_page = delay
    async with running(client, page_size=2) as view:
        assert sorted(view.pods()) == ["late", "p0", "p1", "p2"]


async def test_broken_watch_continues_at_its_version(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.create("pods", pod("a"))
    async with running(client, server=server) as view:
        server.create("pods", pod("b"))
        await view.shows({"a": "", "b": ""})
        server.cut_watches()
        server.delete("pods", "ns", "a")
        server.create("pods", pod("c"))
        await view.shows({"b": "", "c": ""})
        assert server.count("GET", "/pods") == 1
        assert server.count("GET", "/pods", watch=True) == 2


async def test_watch_that_the_server_ends_is_opened_again(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(client, watch_seconds=0) as view:
        await eventually(lambda: server.count("GET", "/pods", watch=True) >= 3)
        server.create("pods", pod("a"))
        await view.shows({"a": ""})
        assert server.count("GET", "/pods") == 1


async def test_watch_too_far_behind_lists_again(client: ApiClient, server: FakeApiServer) -> None:
    server.create("pods", pod("a"))
    server.create("pods", pod("b", job="other"))
    async with running(client, server=server) as view:
        before = view.changes[OTHER]
        server.frozen = True
        server.delete("pods", "ns", "b")
        server.create("pods", pod("c"))
        server.compact()
        server.frozen = False
        server.cut_watches()
        await view.shows({"a": "", "c": ""})
        assert view.pods(OTHER) == {}
        assert view.changes[OTHER] == before + 1
        assert server.count("GET", "/pods") == 2


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ERROR", "object": {"code": 410, "message": "no more"}}\n',
        b'{"type": "ERROR", "object": {"code": 500, "message": "no more"}}\n',
        b"{garbage\n",
    ],
)
async def test_error_in_the_stream_lists_again(
    client: ApiClient, server: FakeApiServer, line: bytes
) -> None:
    async with running(client, server=server) as view:
        server.extra_line = line
        server.wake()
        await eventually(lambda: server.count("GET", "/pods") == 2)
        server.create("pods", pod("a"))
        await view.shows({"a": ""})


async def test_silent_watch_is_opened_again(client: ApiClient, server: FakeApiServer) -> None:
    server.frozen = True
    async with running(client, watch_seconds=3600, watch_slack_seconds=-3599.9) as view:
        await eventually(lambda: server.count("GET", "/pods", watch=True) >= 2)
        server.frozen = False
        server.create("pods", pod("a"))
        await view.shows({"a": ""})


async def test_refused_watch_lists_again(client: ApiClient, server: FakeApiServer) -> None:
    refusal = Fault("GET", 403, {"message": "not you"}, times=2, path_part="watch=true")
    server.faults = [refusal]
    async with running(client, server=server) as view:
        assert server.count("GET", "/pods") == 3
        server.create("pods", pod("a"))
        await view.shows({"a": ""})


async def test_malformed_object_is_skipped_and_its_last_state_kept(
    client: ApiClient, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.create("pods", pod("bad-from-the-start", status="malformed"))
    server.create("pods", pod("a"))
    async with running(client) as view:
        assert view.pods() == {"a": ""}
        server.update("pods", "ns", "a", {"status": "malformed"})
        server.create("pods", pod("b"))
        await view.shows({"a": "", "b": ""})
        server.compact()
        server.cut_watches()
        server.create("pods", pod("c"))
        await view.shows({"a": "", "b": "", "c": ""})
        server.delete("pods", "ns", "a")
        await view.shows({"b": "", "c": ""})
    assert "ns/bad-from-the-start cannot be parsed and is ignored" in caplog.text


async def test_failing_listener_does_not_end_the_watch(
    client: ApiClient, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(client) as view:

        def fail(_changed: Key) -> None:
            raise ZeroDivisionError

        view.reflector._on_change = fail
        server.create("pods", pod("a"))
        await view.shows({"a": ""})
    assert "the listener failed on a change of ns/job" in caplog.text


async def test_malformed_or_forged_object_is_ignored_with_a_log_line(
    client: ApiClient, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(client) as view:
        view.reflector.offer({"kind": "Status"})
        server.create("pods", pod("b", status="forged"))
        await eventually(lambda: "ignoring ns/b: its label is wrong" in caplog.messages)
        view.reflector.offer(server.create("pods", pod("a", status="malformed")))
        assert view.pods() == {}
    assert "ns/a cannot be parsed and is ignored" in caplog.text
    traced = [record.getMessage() for record in caplog.records if record.exc_info]
    assert not any("ns/b" in line for line in traced)


async def test_offer_is_visible_at_once_and_reported_once(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(client, server=server) as view:
        server.frozen = True
        view.reflector.offer(server.create("pods", pod("mine")))
        assert view.pods() == {"mine": ""}
        server.frozen = False
        server.create("pods", pod("b"))
        await view.shows({"b": "", "mine": ""})
        assert view.changes[JOB] == 2


async def test_offer_during_a_list_is_kept(client: ApiClient, server: FakeApiServer) -> None:
    for index in range(4):
        server.create("pods", pod(f"p{index}"))
    async with running(client, page_size=2, server=server) as view:

        def write(page: int) -> None:
            if page == 1:
                server.before_page = lambda _page: None
                view.reflector.offer(server.create("pods", pod("mine")))
                terminating = {"status": {"phase": "Failed"}}
                view.reflector.offer(server.update("pods", "ns", "p0", terminating))

        seen: list[dict[str, str]] = []
        view.reflector._on_change = lambda _changed: seen.append(view.pods())
        server.before_page = write
        server.compact()
        server.revision += 1
        server.oldest_revision = server.revision
        server.cut_watches()
        await eventually(lambda: server.count("GET", "/pods", watch=True) >= 3)
        await view.shows({"mine": "", "p0": "Failed", "p1": "", "p2": "", "p3": ""})
        offered = [pods for pods in seen if "mine" in pods]
        assert offered == seen  # after its offer it was always visible
        assert all(pods["p0"] == "Failed" for pods in seen[1:])


async def test_timeout_of_the_first_list_has_its_reason(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.faults = [Fault("GET", 403, {"message": "pods is forbidden"}, times=10**6)]
    view = Running(client)
    task = asyncio.create_task(view.reflector.run())
    await eventually(lambda: server.count("GET", "/pods") > 2)
    with pytest.raises(UnavailableError, match=r"/api/v1/pods .* pods is forbidden"):
        await view.reflector.wait_synced(timeout_seconds=0.05)
    server.faults.clear()
    await view.reflector.wait_synced(timeout_seconds=30)
    assert view.reflector.synced
    task.cancel()


async def test_repeated_error_is_logged_once(
    client: ApiClient, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ddp_operator.kube.view.reflector")
    async with running(client, server=server):
        server.faults = [Fault("GET", 403, {"message": "no"}, times=5, path_part="pods")]
        server.cut_watches()
        await eventually(lambda: not server.faults[0].times and server.open_watches == 1)
    lines = [r for r in caplog.records if "reconnects" in r.message and r.message.endswith(": no")]
    assert len(lines) == 1
    assert lines[0].levelno == logging.INFO


async def test_refresh_sees_changes_before_the_watch(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.create("pods", pod("old"))
    async with running(client, server=server) as view:
        server.frozen = True
        server.delete("pods", "ns", "old")
        server.create("pods", pod("new"))
        assert view.pods() == {"old": ""}
        await view.reflector.refresh(timeout_seconds=60)
        assert view.pods() == {"new": ""}
        server.frozen = False
        server.create("pods", pod("newer"))
        await view.shows({"new": "", "newer": ""})


async def test_refresh_does_not_wait_for_a_backoff(
    client: ApiClient, server: FakeApiServer
) -> None:
    async with running(
        client, first_backoff_seconds=3600.0, last_backoff_seconds=3600.0, server=server
    ) as view:
        server.cut_watches()
        await eventually(lambda: server.open_watches == 0)
        server.create("pods", pod("new"))
        await asyncio.gather(
            view.reflector.refresh(timeout_seconds=60), view.reflector.refresh(timeout_seconds=60)
        )
        assert view.pods() == {"new": ""}


async def test_failed_refresh_has_its_reason(
    credentials: Credentials, server: FakeApiServer
) -> None:
    async with ApiClient(credentials, max_attempts=1) as client, running(client) as view:
        await eventually(lambda: server.open_watches == 1)
        server.faults = [Fault("GET", 500, {"message": "etcd is down"}, times=10**6)]
        with pytest.raises(UnavailableError, match="within 3 s: etcd is down"):
            await view.reflector.refresh(timeout_seconds=3)
