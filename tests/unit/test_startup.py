"""How long a start waits for an API server that is away."""

import logging
from pathlib import Path

import pytest
import yaml
from ddp_operator import startup
from ddp_operator.ports import ForbiddenError, UnavailableError


async def test_it_gives_up_at_its_deadline_with_the_last_answer() -> None:
    async def look() -> None:
        raise UnavailableError("connection refused")

    with pytest.raises(UnavailableError, match="connection refused"):
        await startup.when_reachable(look, seconds=0)


async def test_it_says_that_it_waits_and_returns_the_first_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "_RETRY_SECONDS", 0.0)
    refusals = [UnavailableError("connection refused")] * 2

    async def look() -> str:
        if refusals:
            raise refusals.pop()
        return "here"

    with caplog.at_level(logging.WARNING):
        assert await startup.when_reachable(look) == "here"
    assert caplog.messages == ["waiting for the API server: connection refused"] * 2


async def test_a_server_that_has_just_come_back_may_not_know_the_crd_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup, "_RETRY_SECONDS", 0.0)
    answers = [UnavailableError("connection refused"), startup.StartupError("no CRD"), None]

    async def look() -> None:
        if answer := answers.pop(0):
            raise answer

    await startup.when_reachable(look)
    answers = [startup.StartupError("no CRD")]
    with pytest.raises(startup.StartupError, match="no CRD"):
        await startup.when_reachable(look)


async def test_what_time_will_not_heal_is_raised_at_once() -> None:
    async def look() -> None:
        raise ForbiddenError("no such user", status=401)

    with pytest.raises(ForbiddenError):
        await startup.when_reachable(look)


def test_the_secret_is_the_only_one_that_the_manifests_let_it_read() -> None:
    rbac = Path(__file__).parents[2] / "manifests/install/rbac.yaml"
    rules = [
        (document["kind"], document["metadata"].get("namespace"), rule)
        for document in yaml.safe_load_all(rbac.read_text())
        for rule in document.get("rules") or ()
        if "secrets" in rule["resources"]
    ]
    assert {(kind, namespace) for kind, namespace, _ in rules} == {("Role", "ddp-operator")}
    read = [rule["resourceNames"] for _, _, rule in rules if rule["verbs"] == ["get"]]
    assert read == [[startup.SECRET_NAME]]
    assert [rule["verbs"] for _, _, rule in rules] == [["get"], ["create"]]
