"""The undisturbed run for tests of flipped bits."""

from __future__ import annotations

import pytest

from tests.trainer.library.checks.test_verification import FLAGS, Ends, ends_of
from tests.trainer.library.runs import Undisturbed, log_of


@pytest.fixture
def ends(undisturbed: Undisturbed) -> Ends:
    """Return a function that gives the ends of a run of so many ranks without faults."""

    def of(ranks: int) -> list[str]:
        found = ends_of(log_of(undisturbed("flips", *FLAGS, ranks=ranks)))
        assert len(found) == ranks
        return found

    return of
