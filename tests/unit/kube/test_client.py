import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator import __version__
from ddp_operator.api.constants import RECURSION
from ddp_operator.kube import ApiClient, Credentials, load_credentials
from ddp_operator.kube.errors import AnswerTooLargeError, GoneError
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceEndsError,
    NotFoundError,
    UnavailableError,
)

from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

PODS_PATH = "/api/v1/namespaces/ns/pods"


def status(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name}}


async def test_request_has_token_and_user_agent(client: ApiClient, server: FakeApiServer) -> None:
    created = await client.request("POST", PODS_PATH, body=pod("a"))
    assert created["metadata"]["name"] == "a"
    [request] = server.requests
    assert request.headers["Authorization"] == "Bearer first"
    assert request.headers["User-Agent"] == f"ddp-operator/{__version__}"
    assert request.headers["Content-Type"] == "application/json"


async def test_serialized_body_is_sent_unchanged(client: ApiClient, server: FakeApiServer) -> None:
    await client.request("POST", PODS_PATH, body=b'{"metadata":{"namespace":"ns","name":"b"}}')
    assert server.requests[0].body == pod("b")


@pytest.fixture
def as_the_process() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("as_the_process")
@pytest.mark.parametrize("depth", [900, 1100, 9990])
async def test_deeply_nested_response_is_read(
    client: ApiClient, server: FakeApiServer, depth: int
) -> None:
    """A user's object with thousands of levels is in every list of all jobs."""
    text = '{"a":' * depth + "1" + "}" * depth
    server.faults.append(Fault("GET", 200, text))
    answer = await client.request("GET", PODS_PATH)
    assert answer == json.loads(text)


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", InvalidError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (405, "MethodNotAllowed", ClusterError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (413, "RequestEntityTooLarge", InvalidError),
        (422, "Invalid", InvalidError),
        (403, "NamespaceTerminating", NamespaceEndsError),
    ],
)
async def test_refusal_raises_its_error_without_a_retry(
    client: ApiClient, server: FakeApiServer, code: int, reason: str, expected: type[ClusterError]
) -> None:
    causes = [{"reason": reason, "field": "metadata.namespace"}]
    stated = reason.replace("NamespaceTerminating", "Forbidden")
    refusal = status(code, stated, "words of the server", causes=causes)
    server.faults = [Fault("POST", code, refusal, times=9)]
    with pytest.raises(ClusterError) as raised:
        await client.request("POST", PODS_PATH, body=pod("a"))
    assert type(raised.value) is expected
    assert raised.value.message == "words of the server"
    assert raised.value.status == code
    assert server.count("POST") == 1


@pytest.mark.parametrize(
    ("code", "message", "causes", "permanent"),
    [
        (422, "no", [{"reason": "Required", "message": "no image", "field": "spec.image"}], True),
        (422, "no", [{"message": "a policy says no"}], False),
        (422, "no", [], False),
        (422, "no", None, False),
        (422, "no", "none", False),
        (400, 'Pod in version "v1" cannot be handled as a Pod: v1.Pod.Spec: bad', None, True),
        (400, 'webhook "a.b" denied the request: Pod in version "v1" cannot be', None, False),
    ],
)
async def test_refusal_that_names_fields_or_cannot_be_parsed_is_permanent(
    client: ApiClient,
    server: FakeApiServer,
    code: int,
    message: str,
    causes: object,
    *,
    permanent: bool,
) -> None:
    server.faults = [Fault("POST", code, status(code, "Invalid", message, causes=causes), times=9)]
    with pytest.raises(InvalidError) as raised:
        await client.request("POST", PODS_PATH, body=pod("a"))
    assert raised.value.permanent is permanent


@pytest.mark.parametrize(
    ("method", "fault", "error", "message"),
    [
        ("PATCH", Fault("PATCH", 502, "<h1>Bad\n Gateway</h1>"), UnavailableError, "^<h1>Bad Gate"),
        ("PATCH", Fault("PATCH", None), UnavailableError, PODS_PATH),
        ("PATCH", Fault("PATCH", 500, status(500, "Oops", "oops")), UnavailableError, "oops"),
        ("PATCH", Fault("PATCH", 409, status(409, "Conflict", "modified")), ConflictError, "mod"),
        ("GET", Fault("GET", 302, "moved", headers={"Location": "http://x/"}), ClusterError, "mov"),
    ],
    ids=["error page", "patch with an unknown result", "failed patch", "conflict", "redirect"],
)
async def test_failed_request_is_not_retried_if_that_is_unsafe(
    client: ApiClient,
    server: FakeApiServer,
    method: str,
    fault: Fault,
    error: type[ClusterError],
    message: str,
) -> None:
    server.create("pods", pod("a"))
    server.faults = [replace(fault)]
    with pytest.raises(error, match=message):
        await client.request(method, f"{PODS_PATH}/a", body={} if method == "PATCH" else None)
    assert server.count(method) == 1


@pytest.mark.usefixtures("as_the_process")
@pytest.mark.parametrize("content", ["[" * 100_000, "<html>"])
async def test_response_that_is_no_json_is_unavailable(
    client: ApiClient, server: FakeApiServer, content: str
) -> None:
    server.faults = [Fault("GET", 200, content, times=9)]
    with pytest.raises(UnavailableError, match="GET /api/v1/namespaces/ns/pods"):
        await client.request("GET", PODS_PATH)


async def test_conflict_of_a_creation_is_retried(client: ApiClient, server: FakeApiServer) -> None:
    server.faults = [Fault("POST", 409, status(409, "Conflict", "resourcequotas"), times=2)]
    await client.request("POST", PODS_PATH, body=pod("a"))
    assert server.count("POST") == 3
    server.faults = [Fault("POST", 409, status(409, "Conflict", "resourcequotas"), times=9)]
    with pytest.raises(UnavailableError, match="resourcequotas"):
        await client.request("POST", PODS_PATH, body=pod("b"))


@pytest.mark.parametrize("code", [None, 500, 503, 504])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_failed_request_is_retried_if_that_is_safe(
    client: ApiClient, server: FakeApiServer, method: str, code: int | None
) -> None:
    server.create("pods", pod("a"))
    server.faults = [Fault(method, code, status(code or 0, "Oops", "oops"), times=2)]
    path, body = (PODS_PATH, pod("b")) if method == "POST" else (f"{PODS_PATH}/a", None)
    await client.request(method, path, body=body)
    assert server.count(method) == 3


async def test_retried_creation_finds_its_own_object(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.faults = [Fault("POST", None, after_effect=True)]
    with pytest.raises(AlreadyExistsError):
        await client.request("POST", PODS_PATH, body=pod("a"))
    assert server.count("POST") == 2


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_busy_server_is_retried(
    client: ApiClient, server: FakeApiServer, method: str
) -> None:
    server.create("pods", pod("a"))
    busy = status(429, "TooManyRequests", "busy")
    server.faults = [Fault(method, 429, busy, headers={"Retry-After": "0"}, times=2)]
    path, body = (PODS_PATH, pod("b")) if method == "POST" else (f"{PODS_PATH}/a", {})
    await client.request(method, path, body=body)
    assert server.count(method) == 3


async def test_error_of_a_busy_server_has_its_retry_after(
    client: ApiClient, server: FakeApiServer
) -> None:
    busy = status(429, "TooManyRequests", "busy")
    server.faults = [Fault("POST", 429, busy, headers={"Retry-After": "0"}, times=99)]
    with pytest.raises(UnavailableError) as raised:
        await client.request("POST", PODS_PATH, body=pod("a"))
    assert (raised.value.status, raised.value.retry_after_seconds) == (429, 0.0)
    assert server.count("POST") == 4

    server.faults = [Fault("POST", 429, busy, headers={"Retry-After": "3600"})]
    with pytest.raises(UnavailableError) as raised:
        await client.request("POST", PODS_PATH, body=pod("a"))
    assert raised.value.retry_after_seconds == 3600
    assert server.count("POST") == 5

    named = status(503, "ServerTimeout", "busy", retryAfterSeconds=3600)
    server.faults = [Fault("GET", 503, named)]
    with pytest.raises(UnavailableError) as raised:
        await client.request("GET", PODS_PATH)
    assert raised.value.retry_after_seconds == 3600

    # It does not wait longer than its own timeout.
    server.faults = [Fault("POST", 429, busy, headers={"Retry-After": "9"})]
    with pytest.raises(UnavailableError, match="busy"):
        await client.request("POST", PODS_PATH, body=pod("a"), timeout_seconds=5)


async def test_missing_server_is_unavailable(tmp_path: Path) -> None:
    async with FakeApiServer().running() as server:
        url = server.url
    config = {
        "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": ""}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    credentials = load_credentials(kubeconfig=str(tmp_path / "config"), environ={})
    async with ApiClient(credentials) as client:
        with pytest.raises(UnavailableError, match=r"GET /api: .*127\.0\.0\.1"):
            await client.request("GET", "/api")


async def test_request_ends_at_its_timeout(client: ApiClient, server: FakeApiServer) -> None:
    server.frozen = True
    params = {"watch": "true", "resourceVersion": "100", "timeoutSeconds": "600"}
    with pytest.raises(UnavailableError, match=r"no answer in 0\.05 s"):
        await client.request("GET", PODS_PATH, params=params, timeout_seconds=0.05)


async def test_writes_in_flight_are_limited(
    credentials: Credentials, server: FakeApiServer
) -> None:
    in_flight = 0
    most = 0
    release = asyncio.Event()
    answer = server._answer

    async def slow(request: Any, body: Any) -> Any:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await release.wait()
        in_flight -= 1
        return await answer(request, body)

    server._answer = slow  # type: ignore[method-assign]
    async with ApiClient(credentials, max_writes=3) as client, asyncio.TaskGroup() as tasks:
        for index in range(10):
            tasks.create_task(client.request("POST", PODS_PATH, body=pod(f"p{index}")))
        await eventually(lambda: in_flight == 3)
        read = tasks.create_task(client.request("GET", PODS_PATH))
        await eventually(lambda: in_flight == 4)  # a read does not wait for writes
        release.set()
    assert most == 4
    assert len(read.result()["items"]) <= 10
    assert len(server.objects) == 10


def replace_token(kubeconfig: Path, token: str) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace("first", token))


async def test_refused_credentials_are_loaded_again_once(
    kubeconfig: Path, server: FakeApiServer
) -> None:
    now = 0.0
    credentials = load_credentials(kubeconfig=str(kubeconfig), environ={}, clock=lambda: now)
    server.bearer_token = "second"
    async with ApiClient(credentials) as client:
        now = 60.0
        replace_token(kubeconfig, "second")
        await client.request("GET", PODS_PATH)
        assert [r.headers["Authorization"] for r in server.requests] == [
            "Bearer first",
            "Bearer second",
        ]
        server.bearer_token = "third"
        with pytest.raises(ForbiddenError) as raised:
            await client.request("GET", PODS_PATH)
        assert raised.value.status == 401
        assert server.count("GET") == 4


async def test_response_over_max_bytes_is_refused(client: ApiClient, server: FakeApiServer) -> None:
    server.create("pods", {**pod("large"), "spec": "x" * 100_000})
    answer = await client.request("GET", PODS_PATH, max_bytes=101_000)
    assert len(answer["items"][0]["spec"]) == 100_000
    with pytest.raises(AnswerTooLargeError):
        await client.request("GET", PODS_PATH, max_bytes=100_000)
    assert server.count("GET", "/pods") == 2  # the second one would be as large
    assert {request.headers["Accept-Encoding"] for request in server.requests} == {"identity"}


async def test_stream_yields_complete_lines_of_any_length(
    client: ApiClient, server: FakeApiServer
) -> None:
    long = {"metadata": {"namespace": "ns", "name": "long", "annotations": {"x": "y" * 2**20}}}
    server.create("pods", long)
    server.create("pods", pod("short"))
    params = {"watch": "true", "resourceVersion": "100", "timeoutSeconds": "1"}
    lines = [
        line
        async for line in client.stream_lines(PODS_PATH, params=params, idle_timeout_seconds=30)
    ]
    assert len(lines[0]) > 2**20
    assert b'"short"' in lines[1]
    assert lines[0].startswith(b"{")
    assert all(line.endswith(b"}") for line in lines)


async def test_silent_stream_ends_at_its_timeout(client: ApiClient, server: FakeApiServer) -> None:
    server.frozen = True
    params = {"watch": "true", "resourceVersion": "100", "timeoutSeconds": "600"}
    with pytest.raises(UnavailableError, match="Timeout"):
        async for _ in client.stream_lines(PODS_PATH, params=params, idle_timeout_seconds=0.1):
            pass


async def test_request_of_a_closed_client_is_an_error(credentials: Credentials) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await ApiClient(credentials).request("GET", "/api")


async def test_failed_attempts_are_counted_by_status(
    client: ApiClient, server: FakeApiServer
) -> None:
    await client.request("POST", PODS_PATH, body=pod("a"))
    assert client.errors == {}
    server.faults.append(Fault("GET", 503, status(503, "ServiceUnavailable", "busy"), times=2))
    await client.request("GET", PODS_PATH)
    server.faults.append(Fault("POST", None))
    await client.request("POST", PODS_PATH, body=pod("b"))
    with pytest.raises(NotFoundError):
        await client.request("GET", f"{PODS_PATH}/missing")
    assert client.errors == {"503": 2, "none": 1, "404": 1}
    server.faults.append(Fault("GET", 403, status(403, "Forbidden", "no")))
    with pytest.raises(ForbiddenError):
        async for _ in client.stream_lines(
            PODS_PATH, params={"watch": "1"}, idle_timeout_seconds=9
        ):
            pass
    assert client.errors["403"] == 1
