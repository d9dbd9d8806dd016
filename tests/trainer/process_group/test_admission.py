"""Launchers accept requests from the job's pods and the operator only."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest
from ddp_operator.engine.trainers.requests import _signed
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group import admission
from ddp_trainer.process_group.admission import Request
from ddp_trainer.settings.environment import Placement

from tests.trainer.support.pods import TOKEN, contract

PLACEMENT = Placement.from_env(contract())
NEIGHBOUR = "10.8.0.7"
HERE = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
REQUEST = Request(method="PUT", target="/world?wait=5", body=b'{"nodeRank": 1}')


def admits(
    authorization: str | None,
    request: Request = REQUEST,
    client: str = NEIGHBOUR,
    placement: Placement = PLACEMENT,
) -> bool:
    """Decide as a launcher: first by the headers, then by the body."""
    digest = admission.signed_digest(authorization)
    return admission.admits(
        placement,
        method=request.method,
        target=request.target,
        authorization=authorization,
        client=client,
    ) and digest in (None, hashlib.sha256(request.body).hexdigest())


@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_the_jobs_token_admits_from_anywhere(client: str) -> None:
    header = admission.credentials(PLACEMENT, REQUEST)["Authorization"]
    assert TOKEN not in header
    assert admits(header, client=client)
    assert admits(f"Bearer {TOKEN}", client=client) is (client in HERE)


def test_a_signature_is_of_one_request_and_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    header = admission.credentials(PLACEMENT, REQUEST)["Authorization"]
    for other in (
        replace(REQUEST, method="POST"),
        replace(REQUEST, target="/world?wait=6"),
        replace(REQUEST, body=b'{"nodeRank": 2}'),
        replace(REQUEST, body=b""),
    ):
        assert not admits(header, other)
    scheme, _, rest = header.partition(" ")
    at, digest, signature = rest.split(":")
    assert not admits(f"{scheme} {int(at) + 1}:{digest}:{signature}")
    assert not admits(f"{scheme} {at}:{digest}:{'0' * 64}")
    assert not admits(f"{scheme} {at}:{hashlib.sha256().hexdigest()}:{signature}")
    assert not admits(f"{scheme} {at}:{signature}")
    assert not admits(f"{scheme} {at}")
    now = int(at)
    for away, admitted in ((-601, False), (-599, True), (599, True), (602, False)):
        monkeypatch.setattr(time, "time", lambda away=away: float(now + away))
        assert admits(header) is admitted


def test_the_operator_signs_as_pods_do() -> None:
    header = _signed(TOKEN, "PUT", REQUEST.target, REQUEST.body)["Authorization"]
    assert admits(header)
    assert TOKEN not in header


@pytest.mark.parametrize(
    "header",
    [None, "", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_other_headers_are_refused(header: str | None, client: str) -> None:
    assert not admits(header, client=client)


@pytest.mark.parametrize("job_uid", ["", PLACEMENT.job_uid])
def test_without_a_token_only_this_host_is_admitted(job_uid: str) -> None:
    by_hand = replace(PLACEMENT, token="", job_uid=job_uid)
    assert admission.credentials(by_hand, REQUEST) == {}
    for client in HERE:
        assert admits(None, client=client, placement=by_hand)
    for client in (NEIGHBOUR, "fd00::7", "::ffff:10.8.0.7", "fe80::1%2"):
        assert not admits(None, client=client, placement=by_hand)


def test_token_is_not_in_the_repr() -> None:
    assert TOKEN not in repr(PLACEMENT)


@pytest.mark.parametrize("token", ["two words", "line\n", "é"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="DDP_TOKEN: set it to") as refusal:
        Placement.from_env(contract() | {"DDP_TOKEN": token})
    assert token not in str(refusal.value)
