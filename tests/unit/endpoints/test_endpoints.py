"""The operator's ports for probes and metrics."""

import asyncio
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ddp_operator.__main__ import main
from ddp_operator.endpoints import HealthEndpoint, ListenError, MetricsEndpoint
from ddp_operator.endpoints import metrics as module
from ddp_operator.kube import BusyError, TokenStatus
from ddp_operator.ports import UnavailableError

from tests.ports import free_port
from tests.waiting import eventually

TEXT = "ddp_operator_leader 1\n"


class Reviews:
    """Returns the verdict that a test sets, for each token."""

    def __init__(self, answers: dict[str, TokenStatus | Exception]) -> None:
        self._answers = answers

    async def verdict(self, token: str) -> TokenStatus:
        answer = self._answers[token]
        if isinstance(answer, Exception):
            raise answer
        return answer


Ask = Callable[..., Awaitable[tuple[int, str, Any]]]


@asynccontextmanager
async def asking(port: int) -> AsyncIterator[Ask]:
    """Send requests to a port; return status, body and headers."""
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, **headers: str) -> tuple[int, str, Any]:
            url = f"http://127.0.0.1:{port}{path}"
            async with session.get(url, headers=headers) as answer:
                return answer.status, await answer.text(), answer.headers

        yield ask


def metrics(reviews: Reviews | None = None) -> MetricsEndpoint:
    endpoint = MetricsEndpoint(reviews)  # type: ignore[arg-type]
    endpoint.text = lambda: TEXT
    return endpoint


async def test_each_port_serves_only_its_own_paths() -> None:
    health, ports = HealthEndpoint(), (free_port(), free_port())
    async with (
        health.serving(ports[0]),
        metrics().serving(ports[1]),
        asking(ports[0]) as probe,
        asking(ports[1]) as scrape,
    ):
        assert (await probe("/healthz"))[0] == 200
        assert (await probe("/readyz"))[0] == 503
        health.ready = lambda: True
        assert (await probe("/readyz"))[0] == 200
        assert (await probe("/metrics"))[0] == 404
        status, body, headers = await scrape("/metrics")
        assert (status, body) == (200, TEXT)
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert (await scrape("/healthz"))[0] == 404


async def test_error_for_a_taken_port_names_its_flag() -> None:
    port = free_port()
    async with HealthEndpoint().serving(port):
        with pytest.raises(ListenError, match=rf"port {port} \(--metrics-port\): .*in use"):
            async with metrics().serving(port):
                pytest.fail("both serve one port")
        async with HealthEndpoint().serving(0), metrics().serving(0):
            pass  # port 0: no socket


async def test_metrics_require_a_token_that_the_api_server_allows() -> None:
    reviews = Reviews(
        {
            "friend": TokenStatus.ALLOWED,
            "nobody": TokenStatus.UNKNOWN,
            "other": TokenStatus.FORBIDDEN,
            "late": BusyError(),
        }
    )
    port = free_port()
    async with metrics(reviews).serving(port), asking(port) as scrape:
        for authorization, expected in {
            "Bearer friend": 200,
            "bearer  friend ": 200,
            "Bearer nobody": 401,
            "Basic friend": 401,
            "friend": 401,
            "Bearer other": 403,
            "Bearer late": 503,
        }.items():
            status, body, headers = await scrape("/metrics", Authorization=authorization)
            assert status == expected, authorization
            assert (body == TEXT) == (expected == 200)
            assert headers.get("WWW-Authenticate") == ("Bearer" if expected == 401 else None)
            assert headers.get("Retry-After") == ("1" if expected == 503 else None)
        assert (await scrape("/metrics"))[0] == 401


async def test_unavailable_reviews_answer_503_and_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    reviews = Reviews({"friend": UnavailableError("no answer in 5 s")})
    with caplog.at_level(logging.WARNING):
        async with metrics(reviews).serving(port), asking(port) as scrape:
            for _ in range(3):
                status, body, _ = await scrape("/metrics", Authorization="Bearer friend")
                assert (status, body) == (503, "the API server does not answer\n")
    assert caplog.messages == [
        "refused GET /metrics from 127.0.0.1: the API server does not answer: no answer in 5 s"
    ]


def make_certificate(folder: Path) -> str:
    """Put a new certificate into a folder, and return it."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost"),
            *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
        ],
        check=True,
        capture_output=True,
    )
    return (folder / "tls.crt").read_text()


async def test_renewed_certificate_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ListenError, match=r"--metrics-cert-dir.*tls\.crt and tls\.key"):
        async with metrics().serving(free_port(), certificates=tmp_path):
            pytest.fail("it serves without a certificate")
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    first, port = make_certificate(tmp_path), free_port()

    async def shown() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))

    async with metrics().serving(port, certificates=tmp_path):
        assert await shown() == first
        (tmp_path / "tls.crt").write_text("broken")
        await eventually(lambda: "keeping the old certificate" in caplog.text)
        assert await shown() == first
        second = make_certificate(tmp_path)

        async def renewed() -> bool:
            return await shown() == second

        await eventually(renewed)
        trusting = ssl.create_default_context(cadata=second)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://localhost:{port}/metrics", ssl=trusting) as answer,
        ):
            assert await answer.text() == TEXT


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--metrics-auth", "--metrics-port=0"], "has no effect with --metrics-port 0"),
        (["--metrics-cert-dir=/a", "--metrics-port=0"], "has no effect with"),
        (["--metrics-port=65536"], "invalid port '65536'"),
        (["--health-port=-1"], "invalid port '-1'"),
    ],
)
def test_contradicting_flags_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 64
    assert complaint in capsys.readouterr().err
