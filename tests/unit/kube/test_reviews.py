"""Access to the operator's endpoints, with few requests to the API server."""

import asyncio

import pytest
from ddp_operator.kube import AccessReviews, ApiClient, BusyError, TokenStatus, reviews
from ddp_operator.ports import ForbiddenError, UnavailableError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault

PROMETHEUS = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "7d1f",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {"authentication.kubernetes.io/pod-name": ["prometheus-0"]},
}
TOKEN = "eyJhbGciOi.eyJpc3MiOi-_.c2lnbmF0dXJl=="


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def access(
    client: ApiClient, server: FakeApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AccessReviews:
    monkeypatch.setattr(reviews, "_SLOT_SECONDS", 0.0)
    server.bearers = {TOKEN: PROMETHEUS, "other": {"username": "somebody"}}
    server.visitors = {(str(PROMETHEUS["username"]), "/metrics")}
    return AccessReviews(client, "/metrics", clock=clock)


def reviewed(server: FakeApiServer) -> tuple[int, int]:
    """Return how often the server received TokenReviews and SubjectAccessReviews."""
    return server.count("POST", "/tokenreviews"), server.count("POST", "/subjectaccessreviews")


async def test_accesssend_the_token_and_all_attributes_of_its_user(
    access: AccessReviews, server: FakeApiServer
) -> None:
    assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
    token_review, access_review = server.requests
    assert token_review.path == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert token_review.body["spec"] == {"token": TOKEN}
    assert access_review.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert access_review.body["spec"] == {
        "user": PROMETHEUS["username"],
        "uid": PROMETHEUS["uid"],
        "groups": PROMETHEUS["groups"],
        "extra": PROMETHEUS["extra"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }
    assert await access.verdict("other") is TokenStatus.FORBIDDEN
    assert await access.verdict("wrong") is TokenStatus.UNKNOWN
    assert reviewed(server) == (3, 2)


async def test_verdicts_are_cached_for_a_while(
    access: AccessReviews, server: FakeApiServer, clock: Clock
) -> None:
    for _ in range(3):
        assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
        assert await access.verdict("wrong") is TokenStatus.UNKNOWN
    assert reviewed(server) == (2, 1)
    server.bearers["wrong"] = PROMETHEUS
    clock.seconds += 10
    assert await access.verdict("wrong") is TokenStatus.ALLOWED
    assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
    assert reviewed(server) == (3, 2)
    server.bearers.clear()
    clock.seconds += 50
    assert await access.verdict(TOKEN) is TokenStatus.UNKNOWN
    assert reviewed(server) == (4, 2)


async def test_unknown_tokens_do_not_evict_allowed_ones(
    access: AccessReviews, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_KEPT", 3)
    assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
    for index in range(5):
        assert await access.verdict(f"unknown-{index}") is TokenStatus.UNKNOWN
    assert reviewed(server) == (6, 1)
    assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
    assert await access.verdict("unknown-2") is TokenStatus.UNKNOWN
    assert reviewed(server) == (6, 1)
    assert await access.verdict("unknown-1") is TokenStatus.UNKNOWN  # only so many are kept
    assert reviewed(server) == (7, 1)


@pytest.mark.parametrize("token", ["", " ", "a b", "a=b", "ä", "\udcff", "a\n", "a" * 100 + "\0"])
async def test_invalid_token_is_not_reviewed(
    access: AccessReviews, server: FakeApiServer, token: str
) -> None:
    assert await access.verdict(token) is TokenStatus.UNKNOWN
    assert server.requests == []


async def test_simultaneous_requests_share_a_review(
    access: AccessReviews, server: FakeApiServer
) -> None:
    verdicts = await asyncio.gather(*(access.verdict(TOKEN) for _ in range(20)))
    assert verdicts == [TokenStatus.ALLOWED] * 20
    assert reviewed(server)[0] <= reviews._SLOTS


async def test_requests_over_the_limit_are_refused(
    access: AccessReviews, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_SLOT_SECONDS", 3600.0)
    monkeypatch.setattr(reviews, "_SECONDS", 1.0)
    answers = await asyncio.gather(
        *(access.verdict(f"unknown-{index}") for index in range(100)), return_exceptions=True
    )
    kinds = [type(answer) for answer in answers]
    assert kinds.count(TokenStatus) == reviews._SLOTS
    assert kinds.count(UnavailableError) == reviews._WAITING_LIMIT - reviews._SLOTS
    assert kinds.count(BusyError) == 100 - reviews._WAITING_LIMIT
    assert reviewed(server) == (reviews._SLOTS, 0)


async def test_slots_return_after_their_pause(
    access: AccessReviews, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_SLOT_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for index in range(10):
        assert await access.verdict(f"unknown-{index}") is TokenStatus.UNKNOWN
    assert loop.time() - began >= 0.05 * (10 / reviews._SLOTS - 1)
    assert reviewed(server) == (10, 0)


async def test_failed_review_is_not_cached(access: AccessReviews, server: FakeApiServer) -> None:
    server.faults = [Fault("POST", 403, {"message": "you may not"}, path_part="tokenreviews")]
    with pytest.raises(ForbiddenError, match="you may not"):
        await access.verdict(TOKEN)
    assert await access.verdict(TOKEN) is TokenStatus.ALLOWED
