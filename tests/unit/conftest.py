"""Unit tests are quick: one that takes long belongs to another lane."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT_SECONDS = 5.0
_PRESSURE = Path("/proc/pressure/cpu")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test that takes more than `LIMIT_SECONDS`.

    While processes wait for a core, as on a busy machine, only CPU time counts.
    """
    began, cpu, waited = time.monotonic(), _cpu_seconds(), _pressure_seconds()
    yield
    elapsed = time.monotonic() - began - (_pressure_seconds() - waited)
    took = max(elapsed, _cpu_seconds() - cpu)
    if took > LIMIT_SECONDS:
        pytest.fail(
            f"took {took:.1f} s, a unit test may take {LIMIT_SECONDS:g} s: make it smaller, give "
            "it a clock of its own, or move it to a lane for processes (tests/local, "
            "tests/trainer) or an API server (tests/integration)",
            pytrace=False,
        )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _pressure_seconds() -> float:
    """Return how long processes of this machine have had to wait for a core since it started."""
    try:
        found = re.search(r"^some .*total=(\d+)", _PRESSURE.read_text(), re.MULTILINE)
    except OSError:  # a kernel without pressure stall information
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0
