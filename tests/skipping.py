"""When a test may be skipped for what a machine lacks, and when that would hide a failure."""

import os
from pathlib import Path
from typing import NoReturn

import pytest


def skip_or_fail(what: str, reason: Exception) -> NoReturn:
    """Skip with a loud line; but continuous integration on a machine of the documented kind, which
    is Debian with root, has to run these tests, and fails.
    """
    in_ci = os.environ.get("CI", "").lower() in ("true", "1")
    if in_ci and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        raise reason
    pytest.skip(f"NO {what} ON THIS MACHINE: {reason}")
