"""Generated jobs of up to 256 KB: every call on them takes little time and memory."""

import pytest

from tests.hostile_specs import problems

SEEDS = 25
"""Jobs of each test; they are the same in each run."""
SHARDS, DAILY = 120, 12


@pytest.mark.parametrize(
    "shard",
    [pytest.param(n, marks=() if n < DAILY else pytest.mark.nightly) for n in range(SHARDS)],
)
def test_calls_on_hostile_jobs_take_little_time_and_memory(shard: int) -> None:
    seeds = range(shard * SEEDS, (shard + 1) * SEEDS)
    assert [problem for seed in seeds for problem in problems(seed)] == []
