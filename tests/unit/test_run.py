"""The result that `make test` prints."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.run import Turns, not_run

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

def test_whose_fixture_cannot(moon):
    pass
"""


def test_what_was_skipped_is_counted_by_its_reason(tmp_path: Path) -> None:
    (tmp_path / "test_tides.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([*command, str(tmp_path)], cwd=tmp_path, check=True, capture_output=True)
    assert not_run([report, tmp_path / "of-a-part-that-never-began.xml"]) == {
        "NO MOON ON THIS MACHINE: it is new": 4,
        "needs a tide": 1,
    }


def test_so_many_lanes_run_at_a_time_and_the_first_that_waits_is_next() -> None:
    turns, ran = Turns(2), list[int]()

    def run(place: int) -> None:
        with turns.taken(place):
            ran.append(place)

    lanes = [threading.Thread(target=run, args=(place,)) for place in (2, 0, 1)]
    with turns.taken(3):
        with turns.taken(4):
            for lane in lanes:
                lane.start()
            until = time.monotonic() + 60
            while len(turns.waiting) < len(lanes):
                assert time.monotonic() < until
                time.sleep(0.001)
            assert ran == []
        for lane in lanes:
            lane.join()
    assert ran == [0, 1, 2]
