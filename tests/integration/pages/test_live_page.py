"""The live page of a fake cluster in a real browser."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from ddp_client.remote import pacing
from ddp_client.remote.cluster import Cluster
from ddp_client.ui import pages, polling
from ddp_client.ui.access import PageAccess
from ddp_client.ui.server import serving
from selenium import webdriver

from tests.integration.pages.test_report_page import HOSTILE, MEDIA, METRICS, ask, contrasts
from tests.unit.cli.jobs import failure, training
from tests.unit.job.builders import NAME, NAMESPACE
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.kube.fake_channels import ProgramRun
from tests.unit.report.runs import job, metrics, pod
from tests.unit.ui.conftest import cluster, kubeconfig, server
from tests.waiting import eventually

__all__ = ["cluster", "kubeconfig", "server"]


_LOADED = "return performance.getEntriesByType('resource')"


@dataclass
class Live:
    """An open page and its server."""

    access: PageAccess
    chromium: webdriver.Chrome

    async def ask(self, script: str) -> Any:
        return await asyncio.to_thread(ask, self.chromium, script)

    async def text(self) -> str:
        return str(await self.ask("return document.body.innerText"))

    async def shows(self, word: str) -> None:
        async def found() -> bool:
            return word in await self.text()

        await eventually(found, timeout_seconds=60)


async def print_metrics(run: ProgramRun) -> int:
    """Print a trainer's metrics, as the program in its pod does."""
    content = "\n".join(metrics()).encode() + b"\n"
    await run.print(f"{len(content)}\n".encode())
    await run.print(content)
    return 0


@pytest.fixture
async def live(
    browser: webdriver.Chrome,
    cluster: Cluster,
    server: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Live]:
    """The table of two jobs; the words of one look like HTML."""
    for module in (polling, pages):
        monkeypatch.setattr(module, "LIST_SECONDS", 0.1)
        monkeypatch.setattr(module, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(pacing, "_SHARE", 0)
    uid = server.create("ddpjobs", job())["metadata"]["uid"]
    first = pod(0)
    first["metadata"]["ownerReferences"][0]["uid"] = uid
    server.create("pods", first)
    server.programs[first["metadata"]["name"]] = print_metrics
    hostile = training(placement=HOSTILE, failures=[failure(message=HOSTILE)])
    hostile["metadata"]["name"] = "hostile"
    hostile["status"] |= {"phase": "Failed", "reason": HOSTILE, "message": HOSTILE}
    server.create("ddpjobs", hostile)
    poller = polling.Poller(cluster, home=NAMESPACE, everywhere=True, prices={})
    async with serving(poller, port=0) as access:
        browser.get_log("browser")  # of the page before
        await asyncio.to_thread(browser.get, access.url("/"))
        yield Live(access, browser)
        await asyncio.to_thread(browser.get, "about:blank")
    browser.execute_cdp_cmd(MEDIA, {"media": "", "features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


async def test_links_lead_to_a_job_and_back_without_the_token(live: Live) -> None:
    assert live.chromium.current_url == f"http://127.0.0.1:{live.access.port}/"
    assert live.chromium.title == "Jobs of all namespaces"
    await live.ask("[...document.querySelectorAll('a')].find(a => a.innerText == 'digits').click()")
    await live.shows("DDPJob in namespace")
    assert live.chromium.current_url.endswith(f"/jobs/{NAMESPACE}/{NAME}")
    assert live.chromium.title == f"Report of job {NAME}"
    assert await live.ask("return document.querySelectorAll('svg').length") > 0
    await live.ask("[...document.querySelectorAll('nav a')][0].click()")
    await live.shows("hostile")


async def test_hostile_words_stay_text_and_nothing_else_is_loaded(live: Live) -> None:
    for path in ("/", f"/jobs/{NAMESPACE}/hostile"):
        address = f"http://127.0.0.1:{live.access.port}"
        await asyncio.to_thread(live.chromium.get, address + path)
        assert "document.title='taken'" in await live.text()
        # The script updates the page, too.

        async def updated_twice() -> bool:
            loaded = await live.ask(_LOADED + ".map(entry => entry.initiatorType)")
            return int(loaded.count("fetch")) >= 2

        await eventually(updated_twice, timeout_seconds=60)
        assert "taken" not in live.chromium.title
        assert await live.ask("return document.querySelectorAll('img, iframe').length") == 0
        loaded = await live.ask(_LOADED + ".map(entry => entry.name)")
        assert {name for name in loaded if not name.startswith(address + "/")} == set()
    assert live.chromium.get_log("browser") == []


async def test_list_is_updated_and_keeps_scroll_and_focus(
    live: Live, server: FakeApiServer
) -> None:
    await live.ask(
        "window.mark = 1; document.querySelector('a').focus();"
        "document.body.style.minHeight = '3000px'; window.scrollTo(0, 500)"
    )
    focused = await live.ask("return document.activeElement.href")
    server.update("ddpjobs", NAMESPACE, NAME, {"status": {"progress": {"step": 777}}})
    await live.shows("777/")
    assert await live.ask("return window.mark") == 1, "the same page"
    assert await live.ask("return window.scrollY") == 500
    assert await live.ask("return document.activeElement.href") == focused
    server.delete("ddpjobs", NAMESPACE, "hostile")

    async def gone() -> bool:
        return "hostile" not in await live.text()

    await eventually(gone, timeout_seconds=60)


async def test_report_is_updated_and_its_tables_stay_open(
    live: Live, server: FakeApiServer
) -> None:
    page = f"http://127.0.0.1:{live.access.port}/jobs/{NAMESPACE}/{NAME}"
    await asyncio.to_thread(live.chromium.get, page)
    await live.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    server.update("ddpjobs", NAMESPACE, NAME, {"status": {"message": "still training"}})
    await live.shows("still training")
    opened = await live.ask("return [...document.querySelectorAll('details')].map(d => d.open)")
    assert opened
    assert all(opened)


async def test_lost_cluster_is_announced_until_it_is_back(
    live: Live, server: FakeApiServer
) -> None:
    server.faults.append(Fault("GET", 500, path_part="ddpjobs", times=10**6))
    await live.shows("The page shows the last known state.")
    assert NAME in await live.text()
    server.faults.clear()

    async def recovered() -> bool:
        return "last known state" not in await live.text()

    await eventually(recovered, timeout_seconds=60)


@pytest.mark.parametrize("mode", ["light", "dark"])
async def test_page_has_enough_contrast(live: Live, mode: str) -> None:
    found = await asyncio.to_thread(contrasts, live.chromium, mode)
    assert len(found) > 20
    assert min(found) >= 4.5, "WCAG 2, level AA"


@pytest.mark.parametrize("width", [360, 1280])
async def test_page_fits_the_width_of_the_window(live: Live, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await asyncio.to_thread(live.chromium.execute_cdp_cmd, METRICS, size)
    for path in ("/", f"/jobs/{NAMESPACE}/hostile"):
        page = f"http://127.0.0.1:{live.access.port}{path}"
        await asyncio.to_thread(live.chromium.get, page)
        assert await live.ask("return document.documentElement.scrollWidth") <= width
