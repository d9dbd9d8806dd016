"""Requests that are admitted, and requests that are refused."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.ui.conftest import Browser


@pytest.fixture
async def stranger() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


def address(browser: Browser, path: str = "/") -> str:
    return f"http://127.0.0.1:{browser.access.port}{path}"


@pytest.mark.parametrize(
    "path",
    ["/", "/jobs/research/digits", "/nothing", "/?token=", "/?token=%ff%F0", "/?token=wrong"],
)
async def test_without_the_token_nothing_is_told_or_asked(
    browser: Browser, stranger: aiohttp.ClientSession, server: FakeApiServer, path: str
) -> None:
    before = len(server.requests)
    async with stranger.get(address(browser, path)) as answer:
        assert answer.status == 403
        assert "kubectl ddp ui" in await answer.text()
        assert "Set-Cookie" not in answer.headers
    assert len(server.requests) == before


async def test_the_token_leaves_the_address(
    browser: Browser, stranger: aiohttp.ClientSession
) -> None:
    given = browser.access.url("/jobs/research/digits")
    async with stranger.get(given, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"] == "/jobs/research/digits"
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    async with stranger.get(address(browser)) as answer:
        assert answer.status == 200


async def test_a_token_does_not_lead_elsewhere(
    browser: Browser, stranger: aiohttp.ClientSession
) -> None:
    given = browser.access.url("//example.com/")
    async with stranger.get(given, allow_redirects=False) as answer:
        assert not answer.headers.get("Location", "").startswith("//")


async def test_a_cookie_is_of_one_start(browser: Browser, stranger: aiohttp.ClientSession) -> None:
    async with stranger.get(browser.access.url("/")) as answer:
        assert answer.status == 200
    browser.access.token = "that of another start"
    async with stranger.get(address(browser)) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "evil.example:{}"])
async def test_a_name_that_came_to_mean_this_machine(browser: Browser, host: str) -> None:
    named = {"Host": host.format(browser.access.port)}
    async with browser.session.get(browser.access.url("/"), headers=named) as answer:
        assert answer.status == 403


async def test_localhost_is_this_machine(browser: Browser) -> None:
    named = {"Host": f"localhost:{browser.access.port}"}
    async with browser.session.get(browser.access.url("/"), headers=named) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_it_only_shows(browser: Browser, method: str) -> None:
    async with browser.session.request(method, address(browser)) as answer:
        assert answer.status == 405


@pytest.mark.parametrize("path", ["/", "/nothing", "/jobs/research/gone"])
async def test_no_answer_is_kept_framed_or_sniffed(browser: Browser, path: str) -> None:
    async with browser.session.get(address(browser, path)) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy, "nothing inline"


async def test_it_listens_on_this_machine_alone(browser: Browser) -> None:
    assert browser.access.url("/").startswith("http://127.0.0.1:")
    with pytest.raises(aiohttp.ClientConnectorError):
        await browser.session.get(f"http://127.0.0.2:{browser.access.port}/")
