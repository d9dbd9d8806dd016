"""The result that `make test` prints, and the order of its lanes."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.preparation.steps import Stage
from tests.durations import slowest
from tests.run import DAILY, RARE, Suite, Turns, not_run, suite_of

TESTS = """
import pytest

def test_that_runs():
    pass

@pytest.mark.parametrize("number", range(3))
def test_that_cannot(number):
    pytest.skip("NO MOON ON THIS MACHINE: it is new")

@pytest.mark.skipif(True, reason="needs a tide")
def test_that_may_not():
    pass

@pytest.fixture
def moon():
    pytest.skip("NO MOON ON THIS MACHINE: it is new")

def test_with_a_skipped_fixture(moon):
    pass
"""


def test_skipped_tests_are_counted_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_tides.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([*command, str(tmp_path)], cwd=tmp_path, check=True, capture_output=True)
    assert not_run([report, tmp_path / "of-a-part-that-never-began.xml"]) == {
        "NO MOON ON THIS MACHINE: it is new": 4,
        "needs a tide": 1,
    }


def test_lanes_take_turns_and_the_first_prepared_one_is_next() -> None:
    turns, ran = Turns(2), list[int]()

    def run(place: int, needs: Stage | None) -> None:
        with turns.taken(place, needs):
            ran.append(place)

    needed = {2: Stage.IMAGES, 0: Stage.IMAGES, 1: Stage.NODE, 3: None}
    lanes = [threading.Thread(target=run, args=item) for item in needed.items()]
    turns.reach(Stage.NODE)
    with turns.taken(4, None):
        with turns.taken(5, Stage.NODE):
            for lane in lanes:
                lane.start()
            _until(lambda: len(turns.waiting) == len(lanes))
            assert ran == []
        _until(lambda: ran == [1, 3])
        turns.reach(Stage.IMAGES)
        for lane in lanes:
            lane.join()
    assert ran == [1, 3, 0, 2]


def test_share_adds_the_lanes_of_rare_tests() -> None:
    daily = suite_of("tests", None)
    assert (daily.lanes, daily.nightly) == (DAILY, "none")
    assert suite_of("tests", "3/7") == Suite({**DAILY, **RARE}, "3/7")
    assert suite_of("decisions", None).lanes.keys() == {"histories", "decisions"}
    assert suite_of("nightly", None) == Suite({**DAILY, **RARE}, "all")


REPORT = """
<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_quick" time="0.1"/>
<testcase classname="tests.unit.test_a.TestGroup" name="test_slow[x.y]" time="2.5"/>
<testcase classname="tests.unit.test_b" name="test_other" time="1.0"/>
</testsuite></testsuites>
"""


def test_slowest_files_and_tests_are_listed_first(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert [*slowest("decisions", [tmp_path / "report.xml", tmp_path / "absent.xml"], 2)] == [
        "== slowest of decisions: 3 tests, 4 s",
        "      2.6 s  tests/unit/test_a (2 tests)",
        "      1.0 s  tests/unit/test_b (1 tests)",
        "      2.5 s  tests/unit/test_a::test_slow[x.y]",
        "      1.0 s  tests/unit/test_b::test_other",
    ]
    assert [*slowest("nothing", [])] == []


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
