"""Launchers accept requests from the job's pods and the operator only."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ddp_operator.ports import SentToken
from ddp_operator.trainers import _signed
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group import admission
from ddp_trainer.process_group.admission import Request
from ddp_trainer.settings.environment import Placement

from tests.trainer.support.pods import TOKEN, contract

PLACEMENT = Placement.from_env(contract())
NEIGHBOUR = "10.8.0.7"
HERE = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
REQUEST = Request(method="PUT", target="/world?wait=5", body=b'{"nodeRank": 1}')


def admits(authorization: str | None, request: Request = REQUEST, client: str = NEIGHBOUR) -> bool:
    return admission.admits(PLACEMENT, request, authorization=authorization, client=client)


@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_the_jobs_token_admits_from_anywhere(client: str) -> None:
    header = admission.credentials(PLACEMENT, REQUEST)["Authorization"]
    assert TOKEN not in header
    assert admits(header, client=client)
    assert admits(f"Bearer {TOKEN}", client=client), "an operator of an earlier version"


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
    at, _, signature = rest.partition(":")
    assert not admits(f"{scheme} {int(at) + 1}:{signature}")
    assert not admits(f"{scheme} {at}:{'0' * 64}")
    assert not admits(f"{scheme} {at}")
    now = int(at)
    for away, admitted in ((-601, False), (-599, True), (599, True), (602, False)):
        monkeypatch.setattr(time, "time", lambda away=away: float(now + away))
        assert admits(header) is admitted


def test_the_operator_signs_as_pods_do() -> None:
    header = _signed(TOKEN, "PUT", REQUEST.target, REQUEST.body)["Authorization"]
    assert admits(header)
    assert TOKEN not in header
    assert _signed(SentToken(TOKEN), "PUT", REQUEST.target) == {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "header",
    [None, "", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_other_headers_are_refused(header: str | None, client: str) -> None:
    assert not admits(header, client=client)


def test_pods_of_an_operator_without_tokens_need_none() -> None:
    earlier = replace(PLACEMENT, token="")
    assert admission.placed_by_earlier_operator(earlier)
    assert not admission.placed_by_earlier_operator(PLACEMENT)
    assert admission.credentials(earlier, REQUEST) == {}
    assert admission.admits(earlier, REQUEST, authorization=None, client=NEIGHBOUR)


def test_without_an_operator_only_this_host_is_admitted() -> None:
    by_hand = replace(PLACEMENT, token="", job_uid="")
    assert not admission.placed_by_earlier_operator(by_hand)
    for client in HERE:
        assert admission.admits(by_hand, REQUEST, authorization=None, client=client)
    for client in (NEIGHBOUR, "fd00::7", "::ffff:10.8.0.7", "fe80::1%2"):
        assert not admission.admits(by_hand, REQUEST, authorization=None, client=client)


def test_token_is_not_in_the_repr() -> None:
    assert TOKEN not in repr(PLACEMENT)


@pytest.mark.parametrize("token", ["two words", "line\n", "é"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="DDP_TOKEN: set it to") as refusal:
        Placement.from_env(contract() | {"DDP_TOKEN": token})
    assert token not in str(refusal.value)
