"""The result that `make test` prints."""

import subprocess
import sys
from pathlib import Path

from tests.run import not_run

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
