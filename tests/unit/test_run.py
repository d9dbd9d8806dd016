"""The result that `make test` prints."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.preparation.steps import Stage
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


def test_so_many_lanes_run_at_a_time_and_the_first_that_can_is_next() -> None:
    turns, ran = Turns(2), list[int]()

    def run(place: int, needs: Stage) -> None:
        with turns.taken(place, needs):
            ran.append(place)

    needed = {2: Stage.IMAGES, 0: Stage.IMAGES, 1: Stage.NODE, 3: Stage.NODE}
    lanes = [threading.Thread(target=run, args=item) for item in needed.items()]
    turns.reach(Stage.NODE)
    with turns.taken(4, Stage.NODE):
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


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
