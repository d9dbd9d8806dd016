"""Runs with faults, on a CPU or a device with a stream, and the undisturbed runs to compare."""

from __future__ import annotations

from collections.abc import Callable

from tests.trainer.support.pods import Job, Pod, assert_same

LAST_STEP = {2: 92, 3: 60, 4: 48}  # 4 epochs of ceil(ceil(1438 / ranks) / 32) steps

Undisturbed = Callable[[int, str], Job]
"""Return a run without faults, by its number of ranks and their forkserver."""


def flags(of: Job) -> list[str]:
    """Return flags of a run with running statistics, several buckets and frequent saves."""
    return [
        *("--workload", "tests.trainer.support.norm:load", "--bucket-cap-mb", "0.01"),
        *("--epochs", "4", "--checkpoint-every-steps", "3", "--trace-samples", str(of.traces)),
        *("--max-restarts", "1000", "--heartbeat-timeout-seconds", "5"),
    ]


def run_to_its_end(wounded: Job, *more: str) -> Pod:
    """Run the one pod of a job until it completes; return it."""
    [pod] = wounded.start_all(*flags(wounded), *more)
    assert pod.wait() == 0, pod.log
    return pod


def assert_same_run(actual: Job, expected: Job) -> None:
    """Check that two runs had the same samples and end with the same state, to the bit."""
    ranks = expected.local_world_size
    assert_same(actual.state(LAST_STEP[ranks]), expected.state(LAST_STEP[ranks]))
    for rank in range(ranks):
        assert actual.steps_of(rank) == expected.steps_of(rank)
