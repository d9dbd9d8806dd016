"""Which nightly tests a run includes, and the limit of a unit test's time."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from tests import nightly
from tests.cluster import kind
from tests.cluster.preparation import kubernetes
from tests.nightly import SHARES, checked, selection, share_of

pytest_plugins = ["pytester"]
TESTS = [f"tests/e2e/test_a.py::test_{number}" for number in range(200)]


@pytest.mark.parametrize(
    ("option", "daily", "nightly"),
    [("none", True, False), ("all", True, True), ("only", False, True)],
)
def test_word_selects_all_or_none(option: str, daily: bool, nightly: bool) -> None:
    is_selected = selection(option)
    assert {is_selected(test, False) for test in TESTS} == {daily}
    assert {is_selected(test, True) for test in TESTS} == {nightly}


def test_each_nightly_test_is_in_exactly_one_share() -> None:
    shares = [selection(f"{number}/{SHARES}") for number in range(SHARES)]
    for test in TESTS:
        assert sum(is_selected(test, True) for is_selected in shares) == 1
        assert all(is_selected(test, False) for is_selected in shares)
    assert {share_of(test) for test in TESTS} == set(range(SHARES))


@pytest.mark.parametrize("option", ["", "some", "7/7", "-1/7", "1/8", "1/", "x/7"])
def test_invalid_option_is_refused(option: str) -> None:
    with pytest.raises(Exception, match="use none, all, only, or a share from 0/7 to 6/7"):
        checked(option)


def test_days_take_turns_with_releases_unless_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, "usable", lambda: False)
    days = [date(2026, 12, 30) + timedelta(number) for number in range(6)]
    turns = [nightly.kubernetes_release({"KUBE_VERSION": ""}, day) for day in days]
    assert {*turns[:3]} == {kubernetes.pinned_version(), *kubernetes.OTHER_RELEASES}
    assert turns[3:] == turns[:3]
    for name in ("KUBE_VERSION", "KUBE_BIN_DIR", "DDP_TEST_KUBECONFIG"):
        assert nightly.kubernetes_release({name: "chosen"}, days[0]) is None
    monkeypatch.setattr(kind, "usable", lambda: True)
    assert nightly.kubernetes_release({}, days[0]) is None, "the image of kind's nodes decides"


def test_slow_unit_test_fails_with_a_hint(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for its measure
    source = (Path(__file__).parent / "conftest.py").read_text()
    pytester.makeconftest(source.replace("LIMIT_SECONDS = 5.0", "LIMIT_SECONDS = 0.2"))
    pytester.makepyfile("""
        import time

        def test_quick(): pass
        def test_slow():
            end = time.process_time() + 0.8
            while time.process_time() < end: pass
    """)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["took 0.* s of CPU time and * a unit test may take 0.2 s and *"])
