"""The check of tests with real pods that ranks lose no step."""

import pytest

from tests.e2e.losses import assert_no_step_is_lost


def test_running_steps_may_start_again() -> None:
    assert_no_step_is_lost([[1, 2, 3, 2, 3], [1, 2, 2, 3]], total=3)
    assert_no_step_is_lost([[1, 2, 3], [3]], total=3, elastic=True)


@pytest.mark.parametrize(
    "steps",
    [[[1, 2, 3], [1, 3]], [[1, 2, 3], [1, 2]], [[1, 2, 3, 1, 2, 3], [1, 2, 3]], [[1, 2, 3], []]],
    ids=["left out", "not the last", "gone back", "none"],
)
def test_lost_step_of_a_rank_is_found(steps: list[list[int]]) -> None:
    with pytest.raises(AssertionError):
        assert_no_step_is_lost(steps, total=3)


def test_step_lost_by_all_ranks_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_no_step_is_lost([[1, 3], [1]], total=3, elastic=True)
