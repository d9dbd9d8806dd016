"""Unit tests are quick: one that takes long belongs to another lane."""

from __future__ import annotations

import os
import time
from collections.abc import Generator

import pytest

from tests.unit.cpu_budget import slowness

LIMIT_SECONDS = 5.0
"""CPU time of a test and of its children, on a machine as quick as the one of `cpu_budget`."""
_LIMIT_ELAPSED_SECONDS = 60.0
"""A test that waits so long would be slow anywhere. A busy machine may stop one for seconds."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test that takes too much CPU time, or waits very long."""
    began, cpu = time.monotonic(), _cpu_seconds()
    yield
    used, elapsed = _cpu_seconds() - cpu, time.monotonic() - began
    too_long = used > LIMIT_SECONDS and used > LIMIT_SECONDS * slowness()
    if too_long or elapsed > _LIMIT_ELAPSED_SECONDS:
        pytest.fail(
            f"took {used:.1f} s of CPU time and {elapsed:.1f} s in all, a unit test may take "
            f"{LIMIT_SECONDS:g} s and {_LIMIT_ELAPSED_SECONDS:g} s: make it smaller, give it a "
            "clock of its own, or move it to a lane for processes (tests/local, tests/trainer) or "
            "an API server (tests/integration)",
            pytrace=False,
        )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])
