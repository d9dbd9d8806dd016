"""Fixtures of the simulation's tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.scripted import Script


@pytest.fixture
def begin() -> Iterator[Callable[..., Script]]:
    """Return a function that begins a script, and end it with the test."""
    begun: list[Script] = []

    def begin_one(*args: Any, **kwargs: Any) -> Script:
        begun.append(Script(*args, **kwargs))
        return begun[-1]

    yield begin_one
    for script in begun:
        script.simulation.kill_operator()
