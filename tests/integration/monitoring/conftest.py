"""Prometheus' programs."""

from pathlib import Path

import pytest

from tests.cluster import ClusterUnavailableError
from tests.cluster.preparation import prometheus
from tests.skipping import skip_or_fail


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with prometheus and promtool."""
    try:
        return prometheus.find()
    except ClusterUnavailableError as reason:
        skip_or_fail("PROMETHEUS", reason)
