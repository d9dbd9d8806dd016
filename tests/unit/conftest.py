"""Unit tests are quick: one that takes long belongs to another lane."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT_SECONDS = 5.0
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test that has taken more than `LIMIT_SECONDS`."""
    began, waited = time.monotonic(), _seconds_without_a_core()
    yield
    took = time.monotonic() - began - (_seconds_without_a_core() - waited)
    if took > LIMIT_SECONDS:
        pytest.fail(
            f"took {took:.1f} s, a unit test may take {LIMIT_SECONDS:g} s: make it smaller, give "
            "it a clock of its own, or move it to a lane for processes (tests/local, "
            "tests/trainer) or an API server (tests/integration)",
            pytrace=False,
        )


def _seconds_without_a_core() -> float:
    """Return how long this thread was ready to run and had to wait, on a busy machine."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # a kernel without these counts
        return 0.0
