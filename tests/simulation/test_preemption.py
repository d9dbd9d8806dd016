"""Boosts save work in a queue with preemptions, and starve no job."""

import pytest

from tests.simulation.preemption import Cluster, Result, jobs

SEEDS = range(4)
MOST = 10


@pytest.fixture(scope="module")
def results() -> dict[int, list[Result]]:
    """Results of the same histories without boosts and with them."""
    found = {
        most: [Cluster(gpus=1024, most=most).run(jobs(seed)) for seed in SEEDS]
        for most in (0, MOST)
    }
    for most, of_histories in found.items():
        for result in of_histories:
            print(f"boost of up to {most}: {result}")
    return found


def test_boosts_save_lost_hours(results: dict[int, list[Result]]) -> None:
    for without, with_boosts in zip(results[0], results[MOST], strict=True):
        assert with_boosts.lost_gpu_hours < without.lost_gpu_hours * 0.6


def test_boosts_starve_no_job(results: dict[int, list[Result]]) -> None:
    """More and smaller jobs are preempted, but none more often, and none waits longer."""
    for worst in ("most_preemptions", "longest_wait_hours"):
        without, with_boosts = (
            max(getattr(result, worst) for result in results[most]) for most in (0, MOST)
        )
        assert with_boosts <= without, worst
