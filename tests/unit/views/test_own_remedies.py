"""Remedies of a team's own: which texts match, and which entries are named as wrong."""

import pytest
from ddp_client.views.own_remedies import MOST, OwnRemedies

from tests.unit.cpu_budget import loops

VAULT = "vault: token * has expired\nRun vault login,\nthen create the Secret again"


@pytest.mark.parametrize(
    ("message", "is_found"),
    [
        ("step 3\nERROR vault: token s.1 has expired (403)\n", True),
        ("vault: token  has expired", True),
        ("vault: token s.1\nhas expired", False),
        ("has expired vault: token ", False),
        ("vault: token (.*) has gone", False),
        ("", False),
    ],
)
def test_text_matches_within_a_line(message: str, is_found: bool) -> None:
    own = OwnRemedies.read({"vault": VAULT})
    remedies = ["Run vault login, then create the Secret again"] if is_found else []
    assert (own.matching([message]), own.problems) == (remedies, ())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("only a text", "it has one line; write the text to look for in the first"),
        ("", "it has one line"),
        ("* a *\nrun", "has fewer than 5 letters, so it would match too much"),
        ("a*b*c*d*e*f long\nrun", "has more than 4 *"),
        ("x" * 201 + "\nrun", "its text is longer than 200 characters"),
        ("long enough\n" + "x" * 401, "its remedy is longer than 400 characters"),
    ],
)
def test_bad_entry_is_named_and_others_count(value: str, problem: str) -> None:
    own = OwnRemedies.read({"bad": value, "vault": VAULT})
    [said] = own.problems
    assert said.startswith("ConfigMap ddp-remedies, key bad: ")
    assert problem in said
    assert len(own.entries) == 1


def test_keys_beyond_the_limit_are_not_read() -> None:
    own = OwnRemedies.read({f"key-{i:03}": f"text number {i}\nremedy" for i in range(MOST + 5)})
    assert len(own.entries) == MOST
    assert "only the first 50 are read" in own.problems[0]


def test_worst_entries_take_little_time() -> None:
    text = "a" * 48 + "*" + "a" * 48 + "*" + "a" * 48 + "*" + "b"
    own = OwnRemedies.read({f"key-{i}": f"{text}{i}\nremedy" for i in range(MOST)})
    assert len(own.entries) == MOST
    assert loops(lambda: own.matching(["a" * 8192] * 3)) < 1
