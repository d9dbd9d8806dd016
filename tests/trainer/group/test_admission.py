"""Who may tell a launcher something: the job's own pods and the operator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.membership import admission
from ddp_trainer.settings.environment import Placement

from tests.trainer.support.pods import TOKEN, contract

PLACEMENT = Placement.from_env(contract())
NEIGHBOUR = "10.8.0.7"
HERE = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_the_jobs_token_admits_from_anywhere(client: str) -> None:
    header = admission.credentials(PLACEMENT)["Authorization"]
    assert header == f"Bearer {TOKEN}"
    assert admission.admits(PLACEMENT, authorization=header, client=client)


@pytest.mark.parametrize(
    "header",
    [None, "", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
@pytest.mark.parametrize("client", [NEIGHBOUR, *HERE])
def test_nothing_else_does(header: str | None, client: str) -> None:
    assert not admission.admits(PLACEMENT, authorization=header, client=client)


def test_pods_of_an_operator_without_tokens_are_told_as_they_were() -> None:
    earlier = replace(PLACEMENT, token="")
    assert admission.placed_by_earlier_operator(earlier)
    assert not admission.placed_by_earlier_operator(PLACEMENT)
    assert admission.credentials(earlier) == {}
    assert admission.admits(earlier, authorization=None, client=NEIGHBOUR)


def test_without_an_operator_only_this_host_is_listened_to() -> None:
    by_hand = replace(PLACEMENT, token="", job_uid="")
    assert not admission.placed_by_earlier_operator(by_hand)
    for client in HERE:
        assert admission.admits(by_hand, authorization=None, client=client)
    for client in (NEIGHBOUR, "fd00::7", "::ffff:10.8.0.7", "fe80::1%2"):
        assert not admission.admits(by_hand, authorization=None, client=client)


def test_a_token_is_no_part_of_what_is_printed() -> None:
    assert TOKEN not in repr(PLACEMENT)


@pytest.mark.parametrize("token", ["two words", "line\n", "é"])
def test_a_token_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(ConfigurationError, match="DDP_TOKEN: set it to") as refusal:
        Placement.from_env(contract() | {"DDP_TOKEN": token})
    assert token not in str(refusal.value)
