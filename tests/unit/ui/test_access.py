"""Requests that are admitted, and requests that are refused."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.ui.conftest import Browser


@pytest.fixture
async def visitor() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


def address(browser: Browser, path: str = "/") -> str:
    return f"http://127.0.0.1:{browser.access.port}{path}"


@pytest.mark.parametrize(
    "path",
    ["/", "/jobs/research/digits", "/nothing", "/?token=", "/?token=%ff%F0", "/?token=wrong"],
)
async def test_request_without_the_token_gets_403_and_costs_nothing(
    browser: Browser, visitor: aiohttp.ClientSession, server: FakeApiServer, path: str
) -> None:
    before = len(server.requests)
    async with visitor.get(address(browser, path)) as answer:
        assert answer.status == 403
        assert "kubectl ddp ui" in await answer.text()
        assert "Set-Cookie" not in answer.headers
    assert len(server.requests) == before


async def test_token_moves_from_the_address_to_a_cookie(
    browser: Browser, visitor: aiohttp.ClientSession
) -> None:
    given = browser.access.url("/jobs/research/digits")
    async with visitor.get(given, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"] == "/jobs/research/digits"
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    async with visitor.get(address(browser)) as answer:
        assert answer.status == 200


async def test_token_never_redirects_to_another_host(
    browser: Browser, visitor: aiohttp.ClientSession
) -> None:
    given = browser.access.url("//example.com/")
    async with visitor.get(given, allow_redirects=False) as answer:
        assert not answer.headers.get("Location", "").startswith("//")


async def test_cookie_of_another_start_is_refused(
    browser: Browser, visitor: aiohttp.ClientSession
) -> None:
    async with visitor.get(browser.access.url("/")) as answer:
        assert answer.status == 200
    browser.access.token = "that of another start"
    async with visitor.get(address(browser)) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "evil.example:{}"])
async def test_other_host_names_are_refused(browser: Browser, host: str) -> None:
    named = {"Host": host.format(browser.access.port)}
    async with browser.session.get(browser.access.url("/"), headers=named) as answer:
        assert answer.status == 403


async def test_localhost_is_accepted(browser: Browser) -> None:
    named = {"Host": f"localhost:{browser.access.port}"}
    async with browser.session.get(browser.access.url("/"), headers=named) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_other_methods_are_refused(browser: Browser, method: str) -> None:
    async with browser.session.request(method, address(browser)) as answer:
        assert answer.status == 405


@pytest.mark.parametrize("path", ["/", "/nothing", "/jobs/research/gone"])
async def test_security_headers(browser: Browser, path: str) -> None:
    async with browser.session.get(address(browser, path)) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy, "nothing inline"


async def test_page_listens_on_loopback_only(browser: Browser) -> None:
    assert browser.access.url("/").startswith("http://127.0.0.1:")
    with pytest.raises(aiohttp.ClientConnectorError):
        await browser.session.get(f"http://127.0.0.2:{browser.access.port}/")
