from collections.abc import Callable, Mapping

from tests.unit.fast_loop import FastLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], FastLoop]]:
    """Run the tests of this folder in virtual time."""
    return {"fast": FastLoop}
