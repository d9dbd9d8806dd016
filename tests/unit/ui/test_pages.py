"""The content of the pages, and their API requests."""

import asyncio
import re

import pytest
from ddp_client.remote.cluster import JOBS, Cluster
from ddp_client.remote.pacing import LIST_SECONDS
from ddp_client.ui import polling
from ddp_client.ui.polling import Poller

from tests.unit.cli.jobs import training
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.ui.conftest import Browser, Clock

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m"
PAGE = f"/jobs/research/{NAME}"


def text(page: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", page).split())


async def test_row_of_a_job_links_to_its_report(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    assert "There are no DDPJobs here yet." in await browser.get()
    server.create("ddpjobs", training())
    clock.now += 100
    page = await browser.get()
    assert f'<a href="{PAGE}">{NAME}</a>' in page
    assert "500/2000" in page
    report = text(await browser.get(PAGE))
    assert "Goodput" in report
    assert "metrics.jsonl was not read: pod 0 is not running" in report


@pytest.mark.parametrize("name", ["hostile", '"><script>alert(1)</script>'])
async def test_texts_of_a_job_are_escaped(
    browser: Browser, server: FakeApiServer, clock: Clock, name: str
) -> None:
    job = training(placement=HOSTILE, ready=HOSTILE)
    job["status"] |= {"reason": HOSTILE, "message": HOSTILE}
    job["metadata"]["name"] = name
    server.create("ddpjobs", job)
    for path in ("/", "/jobs/research/hostile")[: 2 if name == "hostile" else 1]:
        clock.now += 100
        page = await browser.get(path)
        assert "&lt;script&gt;alert(1)" in page
        assert "<img" not in page
        assert "\x1b" not in page
        assert '""' not in page or path != "/", "a name ends the attribute"
        assert page.count("<script") == 1, "the page's own"


@pytest.mark.parametrize("path", ["/jobs/research/..%2f..", "/jobs/research/A", "/jobs/a%2fb/c"])
async def test_invalid_name_costs_no_request(
    browser: Browser, server: FakeApiServer, path: str
) -> None:
    before = len(server.requests)
    assert "Not Found" in await browser.get(path)
    assert len(server.requests) == before


async def test_many_tabs_cost_as_much_as_one(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    server.create("ddpjobs", training())
    clock.now += LIST_SECONDS
    before = len(server.requests)
    await asyncio.gather(*(browser.get() for _ in range(8)))
    assert len(server.requests) - before == 1, "a list"
    await asyncio.gather(*(browser.get(PAGE) for _ in range(8)))
    assert len(server.requests) - before == 4, "the job, its pods, its events; no pod to read in"
    clock.now += LIST_SECONDS
    await asyncio.gather(browser.get(), browser.get(PAGE))
    assert len(server.requests) - before == 5, "a list; the report is younger than its seconds"
    clock.now += polling.REPORT_SECONDS
    await browser.get(PAGE)
    assert len(server.requests) - before == 8


async def test_page_without_readers_costs_no_request(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    before = len(server.requests)
    clock.now += 1000
    await asyncio.gather(*(browser.get("/nothing") for _ in range(3)))
    assert len(server.requests) == before


async def test_cached_reports_are_bounded(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer
) -> None:
    monkeypatch.setattr(polling, "_MAX_REPORTS", 2)
    for name in ("a", "b", "a", "c"):
        await browser.get(f"/jobs/research/{name}")
    before = len(server.requests)
    await browser.get("/jobs/research/a")
    assert len(server.requests) == before, "b was the one that was looked at longest ago"
    await browser.get("/jobs/research/b")
    assert len(server.requests) > before


async def test_table_of_jobs_is_bounded(
    browser: Browser, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(polling, "_MAX_JOBS", 2)
    for name in ("a", "b", "c", "d"):
        job = training()
        job["metadata"]["name"] = name
        server.create("ddpjobs", job)
    clock.now += 100
    page = await browser.get()
    assert page.count('<th scope="row"') == 2
    assert "2 more jobs: see" in page


async def test_outage_of_the_server_keeps_the_last_state(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    server.create("ddpjobs", training())
    clock.now += 100
    for path in ("/", PAGE):
        await browser.get(path)
        server.faults.append(Fault(status=503, method="GET", path_part="ddpjobs", times=9))
        clock.now += 100
        page = text(await browser.get(path))
        assert re.search(
            r"Since \d\d:\d\d:\d\d UTC: .* The page shows the last known state\.", page
        )
        assert NAME in page
        assert "500" in page
        server.faults.clear()
        clock.now += 100
        assert "Since" not in text(await browser.get(path))


async def test_deleted_job_keeps_its_last_report(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    assert "there is no job digits" in text(await browser.get(PAGE))
    server.create("ddpjobs", training())
    clock.now += 100
    assert "there is no job" not in text(await browser.get(PAGE))
    server.delete("ddpjobs", "research", NAME)
    clock.now += 100
    page = text(await browser.get(PAGE))
    assert "there is no job digits" in page
    assert "Goodput" in page, "its last report stays"


async def test_missing_crd_gets_a_remedy(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    del server.resource_lists[JOBS.root]
    server.faults.append(Fault(status=404, method="GET", path_part="ddpjobs", times=9))
    clock.now += 100
    assert "the DDPJob CRD is not installed: install the CRD" in text(await browser.get())
    assert "the DDPJob CRD is not installed: install the CRD" in text(await browser.get(PAGE))


async def test_missing_operator_gets_a_remedy(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    server.create("ddpjobs", training(observedGeneration=0))
    clock.now += 100
    assert "No operator has handled 1 job: run `kubectl ddp doctor`" in text(await browser.get())


async def test_rights_in_one_namespace_show_its_jobs(
    cluster: Cluster, server: FakeApiServer
) -> None:
    server.create("ddpjobs", training())
    everywhere = Poller(cluster, home="research", everywhere=True, prices={})
    server.faults.append(Fault(status=403, method="GET", path_part="ddpjobs", times=1))
    await everywhere.jobs.refresh()
    jobs = everywhere.jobs.value
    assert jobs is not None
    assert [key.name for key, _ in jobs.rows] == [NAME]
    assert jobs.notes[0].startswith("You may not list the jobs of all namespaces")


async def test_missing_right_to_list_is_shown(
    browser: Browser, server: FakeApiServer, clock: Clock
) -> None:
    server.faults.append(Fault(status=403, method="GET", path_part="ddpjobs", times=9))
    browser.poller.jobs.value = None
    clock.now += 100
    page = text(await browser.get())
    assert "Since" in page
    assert "last known state" not in page
