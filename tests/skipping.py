"""When a test may be skipped for what a machine lacks, and when that would hide a failure."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(what: str, reason: Exception) -> NoReturn:
    """Skip with a loud line; but continuous integration has to run these tests, and fails."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        raise reason
    pytest.skip(f"NO {what} ON THIS MACHINE: {reason}")
