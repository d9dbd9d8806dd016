"""Settings of all tests."""

import pytest
from hypothesis import HealthCheck, settings

from tests import nightly

# How long an example takes says more of the machine than of the code: on a busy one, any may be
# slow.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--nightly`."""
    parser.addoption(
        "--nightly",
        default="none",
        type=nightly.checked,
        help="which nightly tests run: none (default), all, only (no others), or a share K/7",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests that this run does not include.

    A test that the command line names (`FILE::TEST`) always runs.
    """
    is_selected = nightly.selection(config.getoption("--nightly"))
    named = tuple(argument for argument in config.args if "::" in argument)
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_nightly = item.get_closest_marker("nightly") is not None
        runs = is_selected(item.nodeid, is_nightly) or item.nodeid.startswith(named)
        (selected if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = selected
