"""The check that ranks lose no step, which tests with real pods make."""

import pytest

from tests.e2e.losses import assert_no_step_is_lost


def test_the_steps_under_way_may_be_begun_again() -> None:
    assert_no_step_is_lost([[1, 2, 3, 2, 3], [1, 2, 2, 3]], total=3)
    assert_no_step_is_lost([[1, 2, 3], [3]], total=3, elastic=True)


@pytest.mark.parametrize(
    "steps",
    [[[1, 2, 3], [1, 3]], [[1, 2, 3], [1, 2]], [[1, 2, 3, 1, 2, 3], [1, 2, 3]], [[1, 2, 3], []]],
    ids=["left out", "not the last", "gone back", "none"],
)
def test_no_rank_may_lose_one(steps: list[list[int]]) -> None:
    with pytest.raises(AssertionError):
        assert_no_step_is_lost(steps, total=3)


def test_all_ranks_together_may_lose_none_either() -> None:
    with pytest.raises(AssertionError):
        assert_no_step_is_lost([[1, 3], [1]], total=3, elastic=True)
