from collections.abc import Callable, Mapping

import pytest

from tests.unit.engine.test_reconciler import World
from tests.unit.fast_loop import FastLoop


@pytest.fixture
def world() -> World:
    return World()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], FastLoop]]:
    """Run the tests of this folder in virtual time."""
    return {"fast": FastLoop}
